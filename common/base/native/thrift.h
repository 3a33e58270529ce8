// Reads the Thrift compact protocol of footers and page headers. The bytes may be damaged, so every read is checked
// against the end.

#pragma once

#include <cstdint>

namespace {

enum Kind { kStop = 0, kTrue = 1, kFalse = 2, kByte = 3, kI16 = 4, kI32 = 5, kI64 = 6, kDouble = 7, kBinary = 8,
            kList = 9, kSet = 10, kStruct = 12 };

constexpr int kMostNested = 32;

// Reads the compact protocol. After an error, `ok` is false and every value read is 0.
struct Reader {
  const uint8_t* data;
  int64_t size, at = 0;
  bool ok = true;

  int64_t fail() {
    ok = false;
    return 0;
  }

  uint8_t byte() {
    if (at >= size) return static_cast<uint8_t>(fail());
    return data[at++];
  }

  uint64_t unsigned_number() {
    uint64_t result = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint8_t next = byte();
      result |= static_cast<uint64_t>(next & 127) << shift;
      if (next < 128) return result;
    }
    return static_cast<uint64_t>(fail());
  }

  int64_t number() {
    const uint64_t value = unsigned_number();
    return static_cast<int64_t>((value >> 1) ^ (~(value & 1) + 1));
  }

  // Moves over some bytes. Returns how many.
  int64_t pass(uint64_t bytes) {
    if (!ok || bytes > static_cast<uint64_t>(size - at)) return fail();
    at += static_cast<int64_t>(bytes);
    return static_cast<int64_t>(bytes);
  }

  // Reads the head of a field. Returns its kind; `kStop` after the last field or an error.
  int field(int64_t* id) {
    const uint8_t head = byte();
    const int kind = head & 15;
    if (!ok || kind == kStop) return kStop;
    *id = head >> 4 ? *id + (head >> 4) : number();
    if (*id < INT16_MIN || *id > INT16_MAX) fail();
    return ok ? kind : kStop;
  }

  int64_t list(int* kind) {
    const uint8_t head = byte();
    *kind = head & 15;
    const uint64_t count = head >> 4 == 15 ? unsigned_number() : head >> 4;
    if (count > static_cast<uint64_t>(size)) return fail();
    return static_cast<int64_t>(count);
  }

  // Skips a value. Returns the size of a list, or 1.
  int64_t skip(int kind, int depth) {
    if (depth > kMostNested) return fail();
    switch (kind) {
      case kTrue:
      case kFalse:
        break;
      case kByte:
        byte();
        break;
      case kI16:
      case kI32:
      case kI64:
        unsigned_number();
        break;
      case kDouble:
        pass(8);
        break;
      case kBinary:
        pass(unsigned_number());
        break;
      case kStruct: {
        int64_t id = 0;
        for (int inner = field(&id); inner != kStop; inner = field(&id)) skip(inner, depth + 1);
        break;
      }
      case kList:
      case kSet: {
        int inner = 0;
        const int64_t count = list(&inner);
        for (int64_t each = 0; ok && each < count; ++each) {
          if (inner == kTrue || inner == kFalse) {
            byte();
          } else {
            skip(inner, depth + 1);
          }
        }
        return count;
      }
      default:
        return fail();
    }
    return 1;
  }
};

inline bool is_integer(int kind) { return kind == kI16 || kind == kI32 || kind == kI64; }

}  // namespace

// The sidecar's messages as constants and structs. docs/protocol.md describes them, and
// common/transport/sidecar/protocol.py is the Python side; a test checks that the two are equal.
// Plain C++17: no framework headers, and no functions that do anything.

#ifndef PARQUETRY_KERNELS_PROTOCOL_H_
#define PARQUETRY_KERNELS_PROTOCOL_H_

#include <cstddef>
#include <cstdint>

namespace parquetry::protocol {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the protocol is little-endian and is read in place");

inline constexpr uint32_t kMagic = 0x59525150;
inline constexpr uint16_t kVersion = 3;
inline constexpr size_t kMaxBodyBytes = 61440;
inline constexpr size_t kAlignment = 64;
inline constexpr int kMaxDims = 8;

// Flags of START.
inline constexpr uint32_t kMerge = 1;   // a message may hold several batches
inline constexpr uint32_t kResume = 2;  // begin at the state in the body

inline constexpr int64_t kInfinite = -1;
inline constexpr int64_t kUnknown = -2;

// Types below 100 go to the sidecar.
enum class MessageType : uint16_t {
  kOpen = 1,
  kStart = 2,
  kRelease = 3,
  kStop = 4,
  kClose = 5,
  kOpened = 101,
  kStarted = 102,
  kSlot = 103,
  kBatch = 104,
  kEnd = 105,
  kError = 106,
  kState = 107,
};

// What a tensor contains for its field.
enum class Role : uint16_t {
  kDense = 0,
  kStringOffsets = 1,
  kStringData = 2,
  kRaggedShapes = 3,
  kRaggedValues = 4,
  kValid = 5,
};
inline constexpr int kRoles = 6;

enum class DType : uint16_t {
  kBool = 1,
  kInt8 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kUint8 = 6,
  kUint16 = 7,
  kUint32 = 8,
  kUint64 = 9,
  kFloat16 = 10,
  kFloat32 = 11,
  kFloat64 = 12,
};

// Returns the bytes of one element; 0 if the number is not a dtype.
constexpr size_t ItemBytes(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kInt8:
    case DType::kUint8:
      return 1;
    case DType::kInt16:
    case DType::kUint16:
    case DType::kFloat16:
      return 2;
    case DType::kInt32:
    case DType::kUint32:
    case DType::kFloat32:
      return 4;
    case DType::kInt64:
    case DType::kUint64:
    case DType::kFloat64:
      return 8;
  }
  return 0;
}

struct Header {
  uint32_t magic;
  uint16_t version;
  uint16_t type;
  uint64_t generation;
  uint64_t a;
  uint64_t b;
  uint32_t body_bytes;
  uint32_t descriptors;
};
static_assert(sizeof(Header) == 40 && offsetof(Header, generation) == 8 && offsetof(Header, body_bytes) == 32);

// Most bodies begin with one of these structs. The texts follow it directly, and nothing else does.
// The last members of the struct are the lengths of the texts.
struct StartBody {
  uint64_t iteration;
  uint64_t passes;
  uint64_t rows;
  uint64_t start;
  uint32_t worker;
  uint32_t workers;
  uint32_t flags;
  uint32_t state_bytes;
};
static_assert(sizeof(StartBody) == 48 && offsetof(StartBody, worker) == 32);

struct StartedBody {
  uint64_t iteration;
  uint64_t most_slots;
  uint32_t before_bytes;
  uint32_t after_bytes;
};
static_assert(sizeof(StartedBody) == 24 && offsetof(StartedBody, before_bytes) == 16);

struct ErrorBody {
  uint32_t name_bytes;
  uint32_t text_bytes;
};
static_assert(sizeof(ErrorBody) == 8);

struct BatchHeader {
  uint64_t slot_bytes;
  uint64_t table_offset;
  uint64_t first_element;
  uint32_t num_tensors;
  uint32_t num_elements;
  uint64_t num_rows;
};
static_assert(sizeof(BatchHeader) == 40 && offsetof(BatchHeader, num_tensors) == 24);

struct TensorEntry {
  uint16_t field;
  uint16_t role;
  uint16_t dtype;
  uint16_t ndim;
  uint64_t offset;
  uint64_t bytes;
  int64_t dims[kMaxDims];
  uint64_t reserved;
};
static_assert(sizeof(TensorEntry) == 96 && offsetof(TensorEntry, offset) == 8 && offsetof(TensorEntry, dims) == 24);

}  // namespace parquetry::protocol

#endif  // PARQUETRY_KERNELS_PROTOCOL_H_

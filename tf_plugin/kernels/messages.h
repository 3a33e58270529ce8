// The client's messages as bytes: what START is made of, and what packets of the sidecar say, each length held against
// what is there before it is used. Pure functions; docs/protocol.md is the description.

#ifndef PARQUETRY_KERNELS_MESSAGES_H_
#define PARQUETRY_KERNELS_MESSAGES_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "protocol.h"

namespace parquetry {

// What STATE says: how a state's text ends from a number of elements on.
struct StateEnd {
  int64_t elements = 0;
  std::string text;
};

// What STARTED says: where the iteration is, and how its states are written.
struct Started {
  int64_t remaining = protocol::kUnknown;  // elements from here on; kInfinite, kUnknown
  int64_t consumed = 0;                    // elements before
  int64_t iteration = 0;                   // its number, which a state brings along
  int64_t most_slots = 0;                  // that the sidecar will use; 0: it does not say
  std::string before;                      // a state's text before and after its number of elements
  std::string after;

  // The state after `elements` of the iteration, counted from its very start; `end` may be null.
  std::string State(int64_t elements, const StateEnd* end = nullptr) const {
    return before + std::to_string(elements) + (end == nullptr ? after : end->text);
  }
};

// The error that ERROR reports: a class of common/errors.py and its text.
struct RemoteError {
  std::string name;
  std::string text;
};

// The body of START; `state` may be null.
std::string PackStart(int64_t iteration, const std::string* state, bool merge);

// Each of these returns what is wrong with the bytes, or nothing and fills `out`.
std::string ReadHeader(std::string_view packet, uint32_t descriptors, protocol::Header* out);
std::string ReadStarted(const protocol::Header& header, std::string_view body, Started* out);
std::string ReadError(std::string_view body, RemoteError* out);
std::string ReadBatchHeader(std::string_view body, protocol::BatchHeader* out);

// Whether a tensor lies inside the memory, aligned, with the dtype of its role, and as long as its shape says.
bool TensorFits(const protocol::TensorEntry& tensor, uint64_t memory_bytes);

}  // namespace parquetry

#endif  // PARQUETRY_KERNELS_MESSAGES_H_

// Converts the client's messages to and from bytes: builds START and reads the packets of the
// sidecar. Each length is checked against the available bytes before it is used. All functions are
// pure. docs/protocol.md describes the messages.

#ifndef PARQUETRY_KERNELS_MESSAGES_H_
#define PARQUETRY_KERNELS_MESSAGES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "protocol.h"

namespace parquetry {

// The content of STATE: how the text of a state ends once the iteration has given `elements`
// elements.
struct StateEnd {
  int64_t elements = 0;
  std::string text;
};

// The content of STARTED: where the iteration is, and how to write its states.
struct Started {
  int64_t remaining = protocol::kUnknown;  // elements left; may be kInfinite or kUnknown
  int64_t consumed = 0;                    // elements before this position
  int64_t iteration = 0;                   // iteration number, stored in states
  int64_t most_slots = 0;                  // most slots that the sidecar will use; 0: unknown
  std::string before;                      // a state is before + elements + after
  std::string after;

  // Returns the state after `elements` elements, counted from the very start of the iteration.
  // `end` may be null.
  std::string State(int64_t elements, const StateEnd* end = nullptr) const {
    return before + std::to_string(elements) + (end == nullptr ? after : end->text);
  }
};

// The error in an ERROR message: the name of a class in common/base/errors.py, and the text.
struct RemoteError {
  std::string name;
  std::string text;
};

// Builds the body of START. `state` may be null.
std::string PackStart(int64_t iteration, const std::string* state, bool merge);

// Each of these functions fills `out` and returns an empty string, or returns what is wrong with
// the bytes.
std::string ReadHeader(std::string_view packet, uint32_t descriptors, protocol::Header* out);
std::string ReadStarted(const protocol::Header& header, std::string_view body, Started* out);
std::string ReadError(std::string_view body, RemoteError* out);
std::string ReadBatchHeaders(std::string_view body, std::vector<protocol::BatchHeader>* out);

// Returns whether a tensor lies inside the memory, is aligned, has a dtype that fits its role, and
// is as long as its shape says.
bool TensorFits(const protocol::TensorEntry& tensor, uint64_t memory_bytes);

}  // namespace parquetry

#endif  // PARQUETRY_KERNELS_MESSAGES_H_

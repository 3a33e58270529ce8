#include "messages.h"

#include <cstring>
#include <initializer_list>
#include <limits>

namespace parquetry {

using protocol::BatchHeader;
using protocol::DType;
using protocol::ErrorBody;
using protocol::Header;
using protocol::Role;
using protocol::StartBody;
using protocol::StartedBody;
using protocol::TensorEntry;

namespace {

template <typename Struct>
bool ReadStruct(std::string_view bytes, Struct* out) {
  if (bytes.size() < sizeof(Struct)) return false;
  std::memcpy(out, bytes.data(), sizeof(Struct));
  return true;
}

// Whether a struct and texts with these lengths fill a body exactly.
bool Fill(std::string_view body, size_t struct_bytes, std::initializer_list<uint64_t> lengths) {
  uint64_t bytes = struct_bytes;
  for (const uint64_t length : lengths) bytes += length;  // 32-bit numbers: no overflow
  return bytes == body.size();
}

std::string Unfit(const char* name, std::string_view body) {
  return std::string("expected the body of ") + name + ", got " + std::to_string(body.size()) + " bytes that do not fit";
}

bool RoleHasDType(const TensorEntry& tensor) {
  const DType dtype = static_cast<DType>(tensor.dtype);
  switch (static_cast<Role>(tensor.role)) {
    case Role::kStringOffsets:
    case Role::kRaggedShapes:
      return dtype == DType::kInt64;
    case Role::kStringData:
      return dtype == DType::kUint8;
    case Role::kValid:
      return dtype == DType::kBool;
    case Role::kDense:
    case Role::kRaggedValues:
      return protocol::ItemBytes(dtype) > 0;
  }
  return false;
}

// Returns the number of elements in a shape; -1 if the shape is invalid or does not fit the
// protocol.
int64_t Elements(const TensorEntry& tensor) {
  if (tensor.ndim > protocol::kMaxDims) return -1;
  int64_t elements = 1;
  for (int i = 0; i < tensor.ndim; ++i) {
    if (tensor.dims[i] < 0 || __builtin_mul_overflow(elements, tensor.dims[i], &elements)) return -1;
  }
  return elements;
}

}  // namespace

std::string PackStart(int64_t iteration, const std::string* state, bool merge) {
  StartBody body{};
  body.iteration = static_cast<uint64_t>(iteration);
  body.workers = 1;
  body.flags = (merge ? protocol::kMerge : 0) | (state != nullptr ? protocol::kResume : 0);
  body.state_bytes = state == nullptr ? 0 : static_cast<uint32_t>(state->size());
  std::string bytes(reinterpret_cast<const char*>(&body), sizeof(body));
  return state == nullptr ? bytes : bytes + *state;
}

std::string ReadHeader(std::string_view packet, uint32_t descriptors, Header* out) {
  if (!ReadStruct(packet, out)) {
    return "expected at least " + std::to_string(sizeof(Header)) + " bytes, got " + std::to_string(packet.size());
  }
  if (out->magic != protocol::kMagic || out->version != protocol::kVersion) {
    const bool ours = out->magic == protocol::kMagic;
    return "expected a message of protocol version " + std::to_string(protocol::kVersion) + ", got " +
           (ours ? "one of version " + std::to_string(out->version) : std::to_string(packet.size()) + " other bytes") +
           ". Trainer and sidecar must run the same parquetry";
  }
  const size_t body_bytes = packet.size() - sizeof(Header);
  if (body_bytes != out->body_bytes || descriptors != out->descriptors) {
    return "expected a body of " + std::to_string(out->body_bytes) + " bytes and " +
           std::to_string(out->descriptors) + " descriptors, got " + std::to_string(body_bytes) + " bytes and " +
           std::to_string(descriptors) + ". The limit on open files may have been reached";
  }
  return "";
}

std::string ReadStarted(const Header& header, std::string_view body, Started* out) {
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  StartedBody numbers;
  if (!ReadStruct(body, &numbers) || !Fill(body, sizeof(numbers), {numbers.before_bytes, numbers.after_bytes}) ||
      header.b > kMost || numbers.iteration > kMost || numbers.most_slots > kMost) {
    return Unfit("STARTED", body);
  }
  out->remaining = static_cast<int64_t>(header.a);
  out->consumed = static_cast<int64_t>(header.b);
  out->iteration = static_cast<int64_t>(numbers.iteration);
  out->most_slots = static_cast<int64_t>(numbers.most_slots);
  out->before = body.substr(sizeof(numbers), numbers.before_bytes);
  out->after = body.substr(sizeof(numbers) + numbers.before_bytes);
  return "";
}

std::string ReadError(std::string_view body, RemoteError* out) {
  ErrorBody lengths;
  if (!ReadStruct(body, &lengths) || !Fill(body, sizeof(lengths), {lengths.name_bytes, lengths.text_bytes})) {
    return Unfit("ERROR", body);
  }
  out->name = body.substr(sizeof(lengths), lengths.name_bytes);
  out->text = body.substr(sizeof(lengths) + lengths.name_bytes);
  return "";
}

std::string ReadBatchHeaders(std::string_view body, std::vector<BatchHeader>* out) {
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  out->clear();
  if (body.empty() || body.size() % sizeof(BatchHeader) != 0) return Unfit("BATCH", body);
  for (; !body.empty(); body.remove_prefix(sizeof(BatchHeader))) {
    if (!ReadStruct(body, &out->emplace_back()) || out->back().num_rows > kMost) return Unfit("BATCH", body);
  }
  return "";
}

bool TensorFits(const TensorEntry& tensor, uint64_t memory_bytes) {
  const size_t item_bytes = protocol::ItemBytes(static_cast<DType>(tensor.dtype));
  int64_t items = Elements(tensor);
  // The offsets of n strings are n + 1 numbers, but their shape is the shape of the strings.
  const bool offsets = tensor.role == static_cast<uint16_t>(Role::kStringOffsets);
  uint64_t bytes = 0, end = 0;
  return RoleHasDType(tensor) && items >= 0 && !__builtin_add_overflow(items, offsets ? 1 : 0, &items) &&
         !__builtin_mul_overflow(static_cast<uint64_t>(items), item_bytes, &bytes) && bytes == tensor.bytes &&
         tensor.offset % protocol::kAlignment == 0 && !__builtin_add_overflow(tensor.offset, tensor.bytes, &end) &&
         end <= memory_bytes;
}

}  // namespace parquetry

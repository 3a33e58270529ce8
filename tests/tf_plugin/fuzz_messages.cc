// Fuzzes what the client reads of a sidecar's packets. Built with a sanitizer, which ends it at the first fault.
//
//   fuzz_messages SEED RUNS PACKET...          (packets in hex; each run changes a few bytes of one)
//   -DPARQUETRY_LIBFUZZER: without `main`, for a fuzzer that is guided by coverage (fuzz/compiled_targets.py)

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "../../tf_plugin/kernels/messages.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace parquetry;
  const std::string packet(reinterpret_cast<const char*>(data), size);  // its end is one that the sanitizer watches
  protocol::Header header;
  const bool whole = ReadHeader(packet, size > 36 ? data[36] : 0, &header).empty();
  const std::string body = packet.substr(std::min(size, sizeof(header)));
  Started started;
  if (whole && ReadStarted(header, body, &started).empty()) started.State(started.consumed);
  RemoteError error;
  ReadError(body, &error);
  std::vector<protocol::BatchHeader> batches;
  ReadBatchHeaders(body, &batches);
  protocol::TensorEntry tensor{};
  std::memcpy(&tensor, body.data(), std::min(body.size(), sizeof(tensor)));
  if (TensorFits(tensor, 1 << 20) && tensor.offset + tensor.bytes > 1 << 20) __builtin_trap();
  return 0;
}

#ifndef PARQUETRY_LIBFUZZER
int main(int argc, char** argv) {
  if (argc < 4) return 2;
  std::mt19937_64 draw(std::stoull(argv[1]));
  const auto below = [&](size_t most) { return most == 0 ? 0 : draw() % most; };
  std::vector<std::string> corpus;
  for (int i = 3; i < argc; ++i) {
    std::string packet;
    for (const char* at = argv[i]; at[0] && at[1]; at += 2) packet.push_back(std::stoi(std::string(at, 2), nullptr, 16));
    corpus.push_back(packet);
  }
  const uint64_t runs = std::stoull(argv[2]);
  for (uint64_t run = 0; run < runs; ++run) {
    std::string packet = corpus[below(corpus.size())];
    for (uint64_t changes = below(6); changes > 0; --changes) {
      const size_t at = below(packet.size());
      switch (below(5)) {
        case 0: packet.resize(at); break;
        case 1: packet.insert(at, below(80), static_cast<char>(draw())); break;
        case 2: if (!packet.empty()) packet[at] = static_cast<char>(draw()); break;
        case 3: if (!packet.empty()) packet[at] ^= static_cast<char>(1 << below(8)); break;
        case 4: if (packet.size() >= at + 8) std::memset(&packet[at], below(2) ? 0xff : 0x7f, 8); break;
      }
    }
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(packet.data()), packet.size());
  }
  std::cout << "runs: " << runs << std::endl;
}
#endif

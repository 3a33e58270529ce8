// Runs the sidecar client without TensorFlow, one scenario a process; test_sidecar_client.py reads what it prints.
//
//   client_driver SCENARIO REQUEST PROGRAM [ARGUMENT...]

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "../../tf_plugin/kernels/messages.h"
#include "../../tf_plugin/kernels/sidecar_client.h"
#include "../../tf_plugin/kernels/sidecar_pool.h"

using parquetry::AcquireSidecar;
using parquetry::Batch;
using parquetry::Canceller;
using parquetry::Error;
using parquetry::Request;
using parquetry::ReturnSidecar;
using parquetry::Sidecar;
using parquetry::Started;

namespace {

void Check(const Error& error) {
  if (!error) return;
  std::cout << "error: " << error.message << std::endl;
  std::_Exit(1);
}

std::shared_ptr<Sidecar> Begin(const Request& request) {
  std::shared_ptr<Sidecar> sidecar;
  Check(AcquireSidecar(request, nullptr, &sidecar));
  Started started;
  Check(sidecar->Start(0, nullptr, false, nullptr, &started));
  return sidecar;
}

std::shared_ptr<const Batch> Next(Sidecar& sidecar) {
  std::shared_ptr<const Batch> batch;
  bool end = false;
  Check(sidecar.Next(nullptr, &batch, &end));
  return end ? nullptr : batch;
}

int64_t FirstValue(const Batch& batch) {
  int64_t value;
  std::memcpy(&value, batch.data(batch.tensors()[0]), sizeof(value));
  return value;
}

int InChild(const std::function<void()>& body) {
  const pid_t pid = fork();
  if (pid == 0) {
    body();
    std::cout.flush();
    std::_Exit(0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return status;
}

// A forked child drops and uses copies of everything; the parent must not notice.
void Fork(const Request& request) {
  std::shared_ptr<Sidecar> busy = Begin(request), idle = Begin(request);
  ReturnSidecar(std::move(idle));
  std::shared_ptr<const Batch> batch = Next(*busy);
  const int status = InChild([&] {
    batch.reset();
    std::shared_ptr<const Batch> none;
    bool end = false;
    std::cout << "inherited: " << busy->Next(nullptr, &none, &end).message << std::endl;
    busy.reset();
    std::shared_ptr<Sidecar> own = Begin(request);
    std::cout << "own: " << FirstValue(*Next(*own)) << std::endl;
    ReturnSidecar(std::move(own));
  });
  std::cout << "child status: " << status << std::endl;
  std::cout << "held: " << FirstValue(*batch) << std::endl;
  int batches = 1;
  for (batch = nullptr; Next(*busy) != nullptr;) ++batches;
  std::cout << "batches: " << batches << std::endl;
  std::shared_ptr<Sidecar> again = Begin(request);
  std::cout << "pooled: " << FirstValue(*Next(*again)) << std::endl;
}

// A child of a child has the files that its parent opened after the first fork, under any numbers.
void ForkTwice(const Request& request) {
  std::shared_ptr<Sidecar> sidecar = Begin(request);
  const int status = InChild([] {
    std::vector<int> opened;
    for (int i = 0; i < 20; ++i) opened.push_back(dup(STDOUT_FILENO));
    InChild([&] {
      for (const int fd : opened) {
        if (fcntl(fd, F_GETFD) < 0) std::cout << "closed: " << fd << std::endl;
      }
    });
  });
  std::cout << "child status: " << status << std::endl;
}

// Another thread takes and returns sidecars while this one forks.
void ForkStorm(const Request& request) {
  std::atomic<bool> done{false};
  std::thread user([&] {
    while (!done) ReturnSidecar(Begin(request));
  });
  int status = 0;
  for (int i = 0; i < 10; ++i) status |= InChild([&] { ReturnSidecar(Begin(request)); });
  done = true;
  user.join();
  std::cout << "child status: " << status << std::endl;
}

// The child outlives the killed parent. The sidecar must still see its connection end.
void ForkLeak(const Request& request) {
  std::shared_ptr<Sidecar> sidecar = Begin(request);
  if (fork() == 0) {
    std::cout << "ready" << std::endl;
    pause();
  }
  pause();
}

// Batches from several threads, dropped after the sidecar.
void Outlive(const Request& request) {
  std::shared_ptr<Sidecar> sidecar = Begin(request);
  std::vector<std::shared_ptr<const Batch>> batches{Next(*sidecar), Next(*sidecar), Next(*sidecar)};
  sidecar.reset();
  std::vector<std::thread> threads;
  for (auto& batch : batches) {
    threads.emplace_back([held = std::move(batch)]() mutable {
      const int64_t value = FirstValue(*held);
      held.reset();
      std::printf("value: %ld\n", static_cast<long>(value));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void CancelOpen(const Request& request) {
  Canceller canceller;
  std::thread other([&] { canceller.Cancel(); });
  std::shared_ptr<Sidecar> sidecar;
  const Error error = AcquireSidecar(request, &canceller, &sidecar);
  other.join();
  std::cout << "cancelled: " << (error.kind == Error::Kind::kCancelled) << std::endl;
}

// Until the end, or the first error.
void Read(const Request& request) {
  std::shared_ptr<Sidecar> sidecar = Begin(request);
  while (Next(*sidecar) != nullptr) {
  }
  std::cout << "end" << std::endl;
}

std::string FromHex(const std::string& text) {
  std::string bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) bytes.push_back(std::stoi(text.substr(i, 2), nullptr, 16));
  return bytes;
}

std::string ToHex(const std::string& bytes) {
  std::string text;
  char digits[3];
  for (const unsigned char byte : bytes) {
    std::snprintf(digits, sizeof(digits), "%02x", byte);
    text += digits;
  }
  return text;
}

std::string Said(const std::string& packet) {
  using parquetry::protocol::MessageType;
  parquetry::protocol::Header header;
  std::string problem = parquetry::ReadHeader(packet, packet.size() > 36 ? packet[36] : 0, &header);
  if (!problem.empty()) return "refused: " + problem;
  const std::string body = packet.substr(sizeof(header));
  std::ostringstream said;
  said << header.type << " " << header.generation << " " << static_cast<int64_t>(header.a) << " " << header.b;
  if (header.type == static_cast<uint16_t>(MessageType::kStarted)) {
    Started started;
    problem = parquetry::ReadStarted(header, body, &started);
    said << " " << started.remaining << " " << started.consumed << " " << started.iteration << " "
         << started.most_slots << " " << started.State(5);
  } else if (header.type == static_cast<uint16_t>(MessageType::kError)) {
    parquetry::RemoteError error;
    problem = parquetry::ReadError(body, &error);
    said << " " << error.name << " " << error.text;
  } else if (header.type == static_cast<uint16_t>(MessageType::kBatch)) {
    std::vector<parquetry::protocol::BatchHeader> headers;
    problem = parquetry::ReadBatchHeaders(body, &headers);
    for (const auto& batch : headers) {
      said << " " << batch.slot_bytes << " " << batch.table_offset << " " << batch.first_element << " "
           << batch.num_tensors << " " << batch.num_elements << " " << batch.num_rows;
    }
  }
  return problem.empty() ? said.str() : "refused: " + problem;
}

// Prints what each packet of stdin (a line of hex) says.
void Packets(const Request&) {
  for (std::string line; std::getline(std::cin, line);) std::cout << Said(FromHex(line)) << "\n";
}

// Prints whether each tensor of stdin (a line of hex) fits into this many bytes.
void Tensors(const Request& request) {
  parquetry::protocol::TensorEntry tensor;
  for (std::string line; std::getline(std::cin, line);) {
    std::memcpy(&tensor, FromHex(line).data(), sizeof(tensor));
    std::cout << parquetry::TensorFits(tensor, std::stoull(request.json)) << "\n";
  }
}

void Starts(const Request&) {
  const std::string state = "{\"a\": \"\xc3\xa9\"}";
  std::cout << ToHex(parquetry::PackStart(3, nullptr, false)) << "\n"
            << ToHex(parquetry::PackStart(0, &state, true)) << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const std::string scenario = argv[1];
  const Request request{{argv + 3, argv + argc}, argv[2], "key"};
  if (scenario == "fork") Fork(request);
  if (scenario == "fork-twice") ForkTwice(request);
  if (scenario == "fork-storm") ForkStorm(request);
  if (scenario == "fork-leak") ForkLeak(request);
  if (scenario == "outlive") Outlive(request);
  if (scenario == "cancel-open") CancelOpen(request);
  if (scenario == "read") Read(request);
  if (scenario == "packets") Packets(request);
  if (scenario == "tensors") Tensors(request);
  if (scenario == "starts") Starts(request);
  return 0;
}

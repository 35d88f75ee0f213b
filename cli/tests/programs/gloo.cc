// The sums of two processes over Gloo's ibverbs transport, every sum compared. Exits with 1 after a wrong sum.
//
//   gloo RANK FOLDER: both processes find each other by files in FOLDER.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include <gloo/allreduce_ring.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/ibverbs/device.h>

constexpr int kProcesses = 2;

static uint64_t number_of(int rank, size_t index) { return (rank + 1) * 1000003 + index; }

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "gloo RANK FOLDER\n");
    return 2;
  }
  const int rank = std::atoi(argv[1]);
  gloo::transport::ibverbs::attr attributes{"roce0", 1, 0};
  auto device = gloo::transport::ibverbs::CreateDevice(attributes);
  gloo::rendezvous::FileStore store(argv[2]);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, kProcesses);
  context->connectFullMesh(store, device);

  gloo::BarrierAllToAll barrier(context);
  for (size_t count : {1, 1000, 100000, 1000000}) {
    std::vector<uint64_t> numbers(count);
    for (size_t i = 0; i < count; i++) numbers[i] = number_of(rank, i);
    gloo::AllreduceRing<uint64_t> allreduce(context, {numbers.data()}, count);
    allreduce.run();
    for (size_t i = 0; i < count; i++) {
      const uint64_t expected = number_of(0, i) + number_of(1, i);
      if (numbers[i] != expected) {
        std::fprintf(stderr, "sum %zu of %zu is %llu, not %llu\n", i, count, (unsigned long long)numbers[i],
                     (unsigned long long)expected);
        return 1;
      }
    }
    // Gloo aborts when a buffer is destroyed before its last request has completed.
    barrier.run();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  std::printf("all sums are right\n");
  barrier.run();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  return 0;
}

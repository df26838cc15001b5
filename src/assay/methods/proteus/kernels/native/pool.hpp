// How the row tiles of a matrix are shared out among threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>

#include "format.hpp"

#if !defined(_WIN32)
#include <pthread.h>
#endif

// A few threads that wait for work. They sleep between calls, and die with the process.
class Pool {
 public:
  // Call drain(context), which returns when there is no work left, from the caller and at most threads - 1 others. When
  // another thread's call has the pool already, the caller does everything itself.
  void run(int threads, void (*drain)(void*), void* context) {
    std::unique_lock<std::mutex> only(calls_, std::try_to_lock);
    if (!only.owns_lock()) {
      drain(context);
      return;
    }
    grow(threads - 1);
    {
      std::lock_guard<std::mutex> lock(state_);
      drain_ = drain;
      context_ = context;
      places_ = threads - 1;
      ++generation_;
    }
    wake_.notify_all();
    drain(context);
    std::unique_lock<std::mutex> lock(state_);
    places_ = 0;  // who has not come by now finds nothing to do
    done_.wait(lock, [this] { return active_ == 0; });
  }

 private:
  void grow(int wanted) {
    while (started_ < wanted) {
      try {
        std::thread([this] { serve(); }).detach();
      } catch (const std::system_error&) {
        return;  // no more threads to have: those that there are do the work
      }
      ++started_;
    }
  }

  void serve() {
    uint64_t seen = 0;
    std::unique_lock<std::mutex> lock(state_);
    for (;;) {
      wake_.wait(lock, [&] { return places_ > 0 && generation_ != seen; });
      seen = generation_;
      --places_;
      ++active_;
      const auto drain = drain_;
      void* const context = context_;
      lock.unlock();
      drain(context);
      lock.lock();
      if (--active_ == 0) done_.notify_one();
    }
  }

  std::mutex calls_, state_;
  std::condition_variable wake_, done_;
  void (*drain_)(void*) = nullptr;
  void* context_ = nullptr;
  int places_ = 0, active_ = 0, started_ = 0;
  uint64_t generation_ = 0;
};

// Never destroyed: its threads may outlive static objects. A forked child has no threads and gets a new pool.
static Pool*& shared_pool() {
  static Pool* pool = [] {
#if !defined(_WIN32)
    pthread_atfork(nullptr, nullptr, [] { shared_pool() = new Pool; });
#endif
    return new Pool;
  }();
  return pool;
}

// GOMP_parallel of the OpenMP runtime that torch uses, if there is one: two pools of threads would fight for the cores,
// because OpenMP's keep spinning for a while after each parallel region.
using OpenMP = void (*)(void (*)(void*), void*, unsigned threads, unsigned flags);
static OpenMP openmp_parallel = nullptr;

extern "C" void use_openmp(OpenMP parallel) { openmp_parallel = parallel; }

constexpr int64_t WEIGHTS_A_CHUNK = 1 << 16;  // some microseconds of work

// Hand out row tiles in chunks; `work(begin, end)` does some.
template <typename Work>
void over_row_tiles(int64_t row_tiles, int64_t column_tiles, int threads, Work work) {
  const int64_t chunk = std::max<int64_t>(1, WEIGHTS_A_CHUNK / std::max<int64_t>(1, column_tiles * BLOCK));
  struct Context {
    Work& work;
    int64_t chunk, row_tiles, chunks;
    std::atomic<int64_t> next{0};
  } context{work, chunk, row_tiles, (row_tiles + chunk - 1) / chunk};
  const auto drain = [](void* pointer) {
    Context& context = *static_cast<Context*>(pointer);
    for (int64_t index; (index = context.next.fetch_add(1)) < context.chunks;) {
      const int64_t begin = index * context.chunk;
      context.work(begin, std::min(begin + context.chunk, context.row_tiles));
    }
  };
  if (threads <= 1 || context.chunks <= 1)
    drain(&context);
  else if (openmp_parallel)
    openmp_parallel(drain, &context, unsigned(threads), 0);
  else
    shared_pool()->run(threads, drain, &context);
}

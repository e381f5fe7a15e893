// Work that is shared out to the cores of the machine.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <system_error>
#include <thread>
#include <vector>

namespace llmc {

// Runs f(0), …, f(n - 1), which must not throw, on all cores; returns when all are done.
template <class F>
void OnAllCores(size_t n, F f) {
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < n; i = next++) f(i);
  };
  std::vector<std::thread> others;
  try {
    for (size_t i = 1; i < std::min<size_t>(n, std::thread::hardware_concurrency()); ++i) others.emplace_back(work);
  } catch (const std::system_error&) {
    // No more threads: those that run do the work.
  }
  work();
  for (std::thread& thread : others) thread.join();
}

}  // namespace llmc

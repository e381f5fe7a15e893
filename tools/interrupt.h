// Ctrl-C, SIGTERM and the end of a terminal while a command writes: nothing half-made may stay.
#pragma once

#include <signal.h>

#include <thread>

namespace llmc {

// While this is there, SIGINT, SIGTERM and SIGHUP end the program as they do without it, but temporary folders are
// removed first; a limit of the size of files (SIGXFSZ) is an error where one is written, from now on. Before other
// threads are started; one at a time. What the program was told to ignore stays ignored.
class InterruptCleanup {
 public:
  InterruptCleanup();
  ~InterruptCleanup();
  InterruptCleanup(const InterruptCleanup&) = delete;
  InterruptCleanup& operator=(const InterruptCleanup&) = delete;

 private:
  void Wait() const;

  sigset_t signals_, before_;
  int end_[2] = {-1, -1};  // a pipe: closed to end the thread
  std::thread thread_;
};

}  // namespace llmc

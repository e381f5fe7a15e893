#include "tools/interrupt.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "files/temporary_folder.h"

namespace llmc {

// A handler may do next to nothing, so the signals are blocked and a thread waits for them.
InterruptCleanup::InterruptCleanup() {
  sigemptyset(&signals_);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action = {};
    if (sigaction(signal, nullptr, &action) == 0 && action.sa_handler != SIG_IGN) sigaddset(&signals_, signal);
  }
  // Too large a file is then an error of the write.
  signal(SIGXFSZ, SIG_IGN);
  if (pipe(end_) != 0) return;
  pthread_sigmask(SIG_BLOCK, &signals_, &before_);
  thread_ = std::thread([this] { Wait(); });
}

InterruptCleanup::~InterruptCleanup() {
  if (!thread_.joinable()) return;
  close(end_[1]);
  thread_.join();
  close(end_[0]);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void InterruptCleanup::Wait() const {
  const int signals = signalfd(-1, &signals_, SFD_CLOEXEC);
  pollfd waits[] = {{.fd = end_[0], .events = POLLIN, .revents = 0}, {.fd = signals, .events = POLLIN, .revents = 0}};
  while (poll(waits, 2, -1) < 0) {
  }
  signalfd_siginfo info = {};
  const bool is_interrupted = waits[1].revents != 0 && read(signals, &info, sizeof(info)) == sizeof(info);
  close(signals);
  if (!is_interrupted) return;
  RemoveTemporaryFoldersForGood();
  const int number = static_cast<int>(info.ssi_signo);
  signal(number, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &signals_, nullptr);
  raise(number);
}

}  // namespace llmc

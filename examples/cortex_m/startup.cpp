// Runs main on the board. QEMU has loaded code and data to their addresses by then, and has the command line.

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

extern "C" {
extern void (*__init_array_start[])();
extern void (*__init_array_end[])();
extern char __bss_start[];
extern char __bss_end[];
extern char __stack_top[];

// These are in newlib's startup files, which take command lines of 255 characters at most.
void* __dso_handle = nullptr;
void _fini() {}

int __real_vsnprintf(char* text, size_t size, const char* format, va_list values);
void initialise_monitor_handles(); // opens the standard streams, in librdimon
int main(int count, char** values);
[[noreturn]] void reset();
[[noreturn]] void fault();
}

namespace {

constexpr size_t kCommandLine = size_t{1} << 16;

// https://github.com/ARM-software/abi-aa/blob/main/semihosting/semihosting.rst
constexpr int kWriteText = 0x04;
constexpr int kGetCommandLine = 0x15;
constexpr int kExit = 0x18;
constexpr uintptr_t kRunTimeError = 0x20023;

int ask_host(int operation, const void* argument) {
  register int r0 asm("r0") = operation;
  register const void* r1 asm("r1") = argument;
  asm volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
  return r0;
}

/// Calls `main` with the words of the command line. It is not a part of `reset` because it may use the FPU.
[[noreturn, gnu::noinline]] void start() {
  std::memset(__bss_start, 0, static_cast<size_t>(__bss_end - __bss_start));
  initialise_monitor_handles();
  for (auto* initialize = __init_array_start; initialize < __init_array_end; ++initialize) {
    (*initialize)();
  }
  static char line[kCommandLine];
  struct {
    char* text;
    size_t size;
  } block = {line, sizeof(line)};
  if (ask_host(kGetCommandLine, &block) != 0) {
    std::fputs("cortex_m_run: the command line is too long\n", stderr);
    std::exit(2);
  }
  std::vector<char*> words;
  for (char* word = std::strtok(line, " "); word != nullptr; word = std::strtok(nullptr, " ")) {
    words.push_back(word);
  }
  std::exit(main(static_cast<int>(words.size()), words.data()));
}

} // namespace

extern "C" void reset() {
  // Enables coprocessors 10 and 11, the FPU and Helium.
  auto* const access_control = reinterpret_cast<volatile uint32_t*>(0xE000ED88);
  *access_control = *access_control | 0xFU << 20;
  asm volatile("dsb\n isb" ::: "memory");
  start();
}

extern "C" void fault() {
  ask_host(kWriteText, "cortex_m_run: the processor has stopped with a fault\n");
  ask_host(kExit, reinterpret_cast<const void*>(kRunTimeError));
  for (;;) {
  }
}

/// Debian builds newlib without %zu and %zd, which ExecuTorch's messages use. Sizes have the width of an int here.
extern "C" int __wrap_vsnprintf(char* text, size_t size, const char* format, va_list values) {
  std::string known = format;
  for (size_t at = known.find("%z"); at != std::string::npos; at = known.find("%z", at)) {
    known.erase(at + 1, 1);
  }
  return __real_vsnprintf(text, size, known.c_str(), values);
}

namespace {

struct Vectors {
  char* stack;
  void (*handlers[15])();
};

[[gnu::section(".vectors"), gnu::used]] const Vectors kVectors = {
    __stack_top,
    {reset, fault, fault, fault, fault, fault, fault, fault, fault, fault, fault, fault, fault, fault, fault}};

} // namespace

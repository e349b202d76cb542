// The least of a kernel that runs statically linked Linux programs, one after the other, on an emulated CPU:
// no processes, files, threads or interrupts. A program that asks for more gets ENOSYS.
//
// The programs are the modules of a multiboot loader; a module's string is the program's command line. What
// they write goes to port 0xE9, which Bochs prints.
#include <elf.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>

extern "C" {

int run_program(uint64_t entry, uint64_t stack);
[[noreturn]] void leave_program(int status);
extern const uint8_t exception_entries[];

// The compiler calls these on its own.
void* memcpy(void* to, const void* from, size_t size) {
  void* const start = to;
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(size)::"memory");
  return start;
}

void* memset(void* to, int byte, size_t size) {
  void* const start = to;
  asm volatile("rep stosb" : "+D"(to), "+c"(size) : "a"(byte) : "memory");
  return start;
}
}

namespace {

// Where things lie; run_emulated.py links the programs at kProgram.
constexpr uint64_t kProgram = 0x10000000;  // and its heap (brk) after it
constexpr uint64_t kMappings = 0x30000000;
constexpr uint64_t kMappingsEnd = 0x6E000000;
constexpr uint64_t kStackEnd = 0x70000000;
constexpr uint64_t kPage = 4096;

uint64_t heap_start, heap_end, mappings_end, mappings_used;

void out(uint16_t port, uint8_t byte) {
  asm volatile("outb %0, %1" ::"a"(byte), "Nd"(port));
}

void print(const char* text, size_t size) {
  for (size_t i = 0; i < size; ++i) out(0xE9, static_cast<uint8_t>(text[i]));
}

void print(const char* text) {
  for (; *text != 0; ++text) print(text, 1);
}

void print_number(uint64_t number, unsigned base) {
  char digits[64];
  size_t begin = sizeof(digits);
  do {
    digits[--begin] = "0123456789abcdef"[number % base];
    number /= base;
  } while (number != 0);
  print(digits + begin, sizeof(digits) - begin);
}

[[noreturn]] void power_off() {
  for (const char* c = "Shutdown"; *c != 0; ++c) out(0x8900, static_cast<uint8_t>(*c));
  for (;;) asm volatile("hlt");
}

[[noreturn]] void fail(const char* why) {
  print("emulated: ");
  print(why);
  print("\n");
  power_off();
}

void write_msr(uint32_t msr, uint64_t value) {
  asm volatile("wrmsr" ::"c"(msr), "a"(static_cast<uint32_t>(value)),
               "d"(static_cast<uint32_t>(value >> 32)));
}

uint64_t ticks() {
  uint32_t low, high;
  asm volatile("rdtsc" : "=a"(low), "=d"(high));
  return uint64_t{high} << 32 | low;
}

uint64_t round_up(uint64_t value) {
  return (value + kPage - 1) & ~(kPage - 1);
}

// Memory is zero at first; what was handed out before is cleared again.
int64_t map(uint64_t size) {
  size = round_up(size);
  if (size > kMappingsEnd - mappings_end) return -ENOMEM;
  const uint64_t start = mappings_end;
  mappings_end += size;
  if (start < mappings_used) {
    const uint64_t used = mappings_end < mappings_used ? mappings_end : mappings_used;
    memset(reinterpret_cast<void*>(start), 0, used - start);
  }
  if (mappings_end > mappings_used) mappings_used = mappings_end;
  return static_cast<int64_t>(start);
}

int64_t set_heap_end(uint64_t end) {
  if (end < heap_start || end > kMappings) return static_cast<int64_t>(heap_end);
  if (end > heap_end) memset(reinterpret_cast<void*>(heap_end), 0, end - heap_end);
  heap_end = end;
  return static_cast<int64_t>(end);
}

struct Segment {
  const char* start;
  uint64_t size;
};

int64_t write_segments(const Segment* segments, uint64_t count) {
  int64_t written = 0;
  for (uint64_t i = 0; i < count; ++i) {
    print(segments[i].start, segments[i].size);
    written += static_cast<int64_t>(segments[i].size);
  }
  return written;
}

}  // namespace

extern "C" int64_t system_call(uint64_t a, uint64_t b, uint64_t c, uint64_t, uint64_t, uint64_t,
                               uint64_t number) {
  switch (number) {
    case SYS_write:
      print(reinterpret_cast<const char*>(b), c);
      return static_cast<int64_t>(c);
    case SYS_writev:
      return write_segments(reinterpret_cast<const Segment*>(b), c);
    case SYS_brk:
      return set_heap_end(a);
    case SYS_mmap:
      return a != 0 ? -ENOMEM : map(b);
    case SYS_munmap:
      if (a + round_up(b) == mappings_end) mappings_end = a;
      return 0;
    case SYS_arch_prctl:
      if (a != 0x1002) return -EINVAL;  // ARCH_SET_FS
      write_msr(0xC0000100, b);
      return 0;
    case SYS_clock_gettime: {
      const uint64_t now = ticks();
      const uint64_t time[2] = {now / 1000000000, now % 1000000000};
      memcpy(reinterpret_cast<void*>(b), time, sizeof(time));
      return 0;
    }
    case SYS_getrandom:
      for (uint64_t i = 0; i < b; ++i) reinterpret_cast<uint8_t*>(a)[i] = static_cast<uint8_t>(37 * i + 11);
      return static_cast<int64_t>(b);
    case SYS_getcwd:
      memcpy(reinterpret_cast<void*>(a), "/", 2);
      return 2;
    case SYS_futex: {
      const uint64_t operation = b & 0x7F;
      const bool waits = operation == 0 || operation == 9;  // FUTEX_WAIT, FUTEX_WAIT_BITSET
      if (!waits) return 0;
      if (*reinterpret_cast<const uint32_t*>(a) != static_cast<uint32_t>(c)) return -EAGAIN;
      print("\nemulated: the program waits for a thread, and there is none\n");
      leave_program(124);
    }
    case SYS_exit:
    case SYS_exit_group:
      leave_program(static_cast<int>(a));
    case SYS_tgkill:
      leave_program(128 + static_cast<int>(c));
    case SYS_getpid:
    case SYS_gettid:
    case SYS_set_tid_address:
      return 1;
    case SYS_mprotect:
    case SYS_madvise:
    case SYS_rt_sigaction:
    case SYS_rt_sigprocmask:
    case SYS_set_robust_list:
      return 0;
    default:
      return -ENOSYS;
  }
}

extern "C" [[noreturn]] void exception_taken(int number, const uint64_t* frame) {
  const bool with_code = number == 8 || (number >= 10 && number <= 14) || number == 17;
  uint64_t address;
  asm volatile("mov %%cr2, %0" : "=r"(address));
  print("\nemulated: CPU exception ");
  print_number(static_cast<uint64_t>(number), 10);
  print(" at 0x");
  print_number(frame[with_code ? 1 : 0], 16);
  print(", last page fault at 0x");
  print_number(address, 16);
  print("\n");
  leave_program(128 + number);
}

namespace {

void set_up_exceptions() {
  struct Gate {
    uint16_t low, selector, flags, middle;
    uint32_t high, reserved;
  };
  static Gate gates[32];
  for (size_t i = 0; i < 32; ++i) {
    const auto entry = reinterpret_cast<uint64_t>(exception_entries + 32 * i);
    gates[i] = {static_cast<uint16_t>(entry),       0x08, 0x8E00, static_cast<uint16_t>(entry >> 16),
                static_cast<uint32_t>(entry >> 32), 0};
  }
  struct [[gnu::packed]] {
    uint16_t limit;
    uint64_t base;
  } const table = {sizeof(gates) - 1, reinterpret_cast<uint64_t>(gates)};
  asm volatile("lidt %0" ::"m"(table));
}

// Copies the program to where it was linked, and returns its header there.
const Elf64_Ehdr* load(const uint8_t* file) {
  const auto* header = reinterpret_cast<const Elf64_Ehdr*>(file);
  if (*reinterpret_cast<const uint32_t*>(file) != 0x464C457F || header->e_type != ET_EXEC) {
    fail("a module is no statically linked program");
  }
  const auto* parts = reinterpret_cast<const Elf64_Phdr*>(file + header->e_phoff);
  uint64_t end = kProgram;
  for (size_t i = 0; i < header->e_phnum; ++i) {
    const Elf64_Phdr& part = parts[i];
    if (part.p_type != PT_LOAD) continue;
    if (part.p_vaddr < kProgram || part.p_vaddr + part.p_memsz > kMappings) fail("a program does not fit");
    auto* const to = reinterpret_cast<uint8_t*>(part.p_vaddr);
    memcpy(to, file + part.p_offset, part.p_filesz);
    memset(to + part.p_filesz, 0, part.p_memsz - part.p_filesz);
    if (part.p_vaddr + part.p_memsz > end) end = part.p_vaddr + part.p_memsz;
  }
  heap_start = heap_end = round_up(end);
  mappings_end = kMappings;
  return reinterpret_cast<const Elf64_Ehdr*>(kProgram);
}

// Builds what a Linux program finds on its stack, from the words of its command line, and runs it.
int run(const uint8_t* file, char* command) {
  const Elf64_Ehdr* const header = load(file);
  static uint64_t words[64];
  size_t count = 1;  // the first is argc
  for (char* c = command; *c != 0 && count < 32;) {
    words[count++] = reinterpret_cast<uint64_t>(c);
    while (*c != 0 && *c != ' ') ++c;
    while (*c == ' ') *c++ = 0;
  }
  words[0] = count - 1;
  words[count++] = 0;
  static const char* const kEnvironment[] = {"GEOCOMM_EXPECTED_CPU_LEVEL=avx512", nullptr};
  for (const char* variable : kEnvironment) words[count++] = reinterpret_cast<uint64_t>(variable);
  static const uint8_t kRandom[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
  const uint64_t auxiliary[][2] = {{AT_PHDR, kProgram + header->e_phoff},
                                   {AT_PHENT, header->e_phentsize},
                                   {AT_PHNUM, header->e_phnum},
                                   {AT_PAGESZ, kPage},
                                   {AT_ENTRY, header->e_entry},
                                   {AT_RANDOM, reinterpret_cast<uint64_t>(kRandom)},
                                   {AT_NULL, 0}};
  for (const auto& entry : auxiliary) {
    words[count++] = entry[0];
    words[count++] = entry[1];
  }
  const uint64_t stack = kStackEnd - sizeof(words);
  memcpy(reinterpret_cast<void*>(stack), words, sizeof(words));
  return run_program(header->e_entry, stack);
}

}  // namespace

extern "C" void kernel_main(uint32_t loader_information) {
  struct Module {
    uint32_t start, end, command, reserved;
  };
  const auto* const fields = reinterpret_cast<const uint32_t*>(uint64_t{loader_information});
  const uint32_t module_count = fields[5];
  const auto* const modules = reinterpret_cast<const Module*>(uint64_t{fields[6]});
  set_up_exceptions();
  for (uint32_t i = 0; i < module_count; ++i) {
    if (modules[i].end > kProgram && modules[i].start < kStackEnd) fail("the loader put a module in the way");
  }
  mappings_used = kMappings;
  for (uint32_t i = 0; i < module_count; ++i) {
    const int status = run(reinterpret_cast<const uint8_t*>(uint64_t{modules[i].start}),
                           reinterpret_cast<char*>(uint64_t{modules[i].command}));
    print("emulated: exit status ");
    print_number(static_cast<uint64_t>(static_cast<uint32_t>(status)), 10);
    print("\n");
  }
  fail("all programs were run");
}

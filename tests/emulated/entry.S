// From the 32-bit state of a multiboot loader to 64-bit mode with AVX-512 on; and the paths between the kernel and the
// program, which also runs in ring 0: without interrupts nothing else is needed.
#define CR4_BITS ((1 << 5) | (1 << 9) | (1 << 10) | (1 << 18))  // PAE, OSFXSR, OSXMMEXCPT, OSXSAVE
#define CR0_BITS ((1 << 31) | (1 << 5) | (1 << 1) | 1)          // PG, NE, MP, PE
#define XCR0_BITS 0xE7                                          // x87, SSE, AVX, opmask, both halves of ZMM
#define MSR_EFER 0xC0000080
#define EFER_BITS ((1 << 8) | 1)  // LME, SCE
#define MSR_STAR 0xC0000081
#define MSR_LSTAR 0xC0000082
#define MSR_FMASK 0xC0000084
#define CODE 0x08

.section .multiboot, "a"
.balign 4
.long 0x1BADB002, 0, -0x1BADB002

.text
.code32
.globl _start
_start:
  cli
  mov %ebx, %ebp  // what the loader knows
  mov $CR4_BITS, %eax
  mov %eax, %cr4
  mov $pml4, %eax
  mov %eax, %cr3
  mov $MSR_EFER, %ecx
  mov $EFER_BITS, %eax
  xor %edx, %edx
  wrmsr
  mov $CR0_BITS, %eax
  mov %eax, %cr0
  lgdt gdt_pointer
  ljmp $CODE, $long_mode

.code64
long_mode:
  mov $0x10, %eax
  mov %eax, %ds
  mov %eax, %es
  mov %eax, %ss
  xor %ecx, %ecx
  mov $XCR0_BITS, %eax
  xor %edx, %edx
  xsetbv
  fninit
  mov $MSR_STAR, %ecx
  xor %eax, %eax
  mov $CODE, %edx
  wrmsr
  mov $MSR_LSTAR, %ecx
  mov $system_call_entry, %eax
  xor %edx, %edx
  wrmsr
  mov $MSR_FMASK, %ecx
  mov $0x400, %eax  // clear the direction flag
  wrmsr
  mov $kernel_stack_end, %esp
  mov %ebp, %edi
  call kernel_main
1:
  hlt
  jmp 1b

// The instruction `syscall`: number in rax, arguments in rdi, rsi, rdx, r10, r8, r9; all but rax, rcx, r11 survive.
system_call_entry:
  mov %rsp, program_rsp
  mov $kernel_stack_end, %esp
  push %rcx
  push %r11
  push %rdi
  push %rsi
  push %rdx
  push %r10
  push %r8
  push %r9
  mov %r10, %rcx
  push %rax  // twice keeps the stack aligned by 16; the seventh argument
  push %rax
  call system_call
  add $16, %rsp
  pop %r9
  pop %r8
  pop %r10
  pop %rdx
  pop %rsi
  pop %rdi
  popfq
  pop %rcx
  mov program_rsp, %rsp
  jmp *%rcx

// int run_program(entry, stack): what leave_program(status) was told.
.globl run_program
run_program:
  push %rbx
  push %rbp
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, outer_rsp
  mov %rsi, %rsp
  xor %edx, %edx  // nothing to call at exit
  xor %ebp, %ebp
  jmp *%rdi

.globl leave_program
leave_program:
  mov outer_rsp, %rsp
  mov %edi, %eax
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbp
  pop %rbx
  ret

// An exception: its number and the frame that the CPU pushed, which begins with an error code for some.
.macro exception number
  .balign 32
  mov $\number, %edi
  mov %rsp, %rsi
  mov $kernel_stack_end, %esp
  jmp exception_taken
.endm
.balign 32
.globl exception_entries
exception_entries:  // 32 bytes each
.set number, 0
.rept 32
  exception number
  .set number, number + 1
.endr

.data
.balign 4096
pml4:
  .quad pdpt + 3
  .fill 511, 8, 0
pdpt:  // the first 4 GiB, by pages of 1 GiB
  .quad 0x83, 0x40000083, 0x80000083, 0xC0000083
  .fill 508, 8, 0
gdt:
  .quad 0, 0x00AF9B000000FFFF, 0x00CF93000000FFFF
gdt_pointer:
  .word . - gdt - 1
  .long gdt

.bss
.balign 16
.skip 65536
kernel_stack_end:
program_rsp:
  .skip 8
outer_rsp:
  .skip 8

.section .note.GNU-stack, "", @progbits

/* Entry of the firmware: clears .bss, sets the stack and the trap vector, and calls main. */
    .section .start, "ax"
    .globl _start
_start:
    la sp, stack_top
    la t0, trap
    csrw mtvec, t0
    la t0, bss_start
    la t1, bss_end
clear:
    bgeu t0, t1, cleared
    sw zero, 0(t0)
    addi t0, t0, 4
    j clear
cleared:
    call main
stopped:
    j stopped

/* Interrupts are never enabled; every trap is an error of the firmware. */
    .balign 4
trap:
    csrr a0, mcause
    csrr a1, mepc
    la sp, stack_top
    call report_trap
    j stopped

# Accesses that may fault: see guarded.rs. Each function returns 0, or 1 after a fault.
        .pushsection .text.roce_guarded,"ax",@progbits
        .p2align 6
        .globl  roce_guarded_copy
        .hidden roce_guarded_copy
        .type   roce_guarded_copy,@function
# rdi: source, rsi: target, rdx: length. It loads and stores in ascending order, 16 bytes or fewer at a time.
roce_guarded_copy:
        xor     eax, eax
        mov     rcx, rdx
        and     rcx, -64
        jz      3f
2:      movups  xmm0, [rdi + rax]
        movups  xmm1, [rdi + rax + 16]
        movups  xmm2, [rdi + rax + 32]
        movups  xmm3, [rdi + rax + 48]
        movups  [rsi + rax], xmm0
        movups  [rsi + rax + 16], xmm1
        movups  [rsi + rax + 32], xmm2
        movups  [rsi + rax + 48], xmm3
        add     rax, 64
        cmp     rax, rcx
        jb      2b
3:      lea     rcx, [rax + 8]
        cmp     rcx, rdx
        ja      4f
        mov     r8, [rdi + rax]
        mov     [rsi + rax], r8
        mov     rax, rcx
        jmp     3b
4:      cmp     rax, rdx
        jae     5f
        mov     r8b, [rdi + rax]
        mov     [rsi + rax], r8b
        inc     rax
        jmp     4b
5:      xor     eax, eax
        ret
        .size   roce_guarded_copy, . - roce_guarded_copy

        .globl  roce_guarded_compare_swap
        .hidden roce_guarded_compare_swap
        .type   roce_guarded_compare_swap,@function
# rdi: address, rsi: expected value, rdx: new value, rcx: where the old value goes.
roce_guarded_compare_swap:
        mov     rax, rsi
        lock cmpxchg [rdi], rdx
        mov     [rcx], rax
        xor     eax, eax
        ret
        .size   roce_guarded_compare_swap, . - roce_guarded_compare_swap

        .globl  roce_guarded_fetch_add
        .hidden roce_guarded_fetch_add
        .type   roce_guarded_fetch_add,@function
# rdi: address, rsi: summand, rdx: where the old value goes.
roce_guarded_fetch_add:
        lock xadd [rdi], rsi
        mov     [rdx], rsi
        xor     eax, eax
        ret
        .size   roce_guarded_fetch_add, . - roce_guarded_fetch_add

        .globl  roce_guarded_store
        .hidden roce_guarded_store
        .type   roce_guarded_store,@function
# rdi: address, rsi: value.
roce_guarded_store:
        mov     [rdi], rsi
        xor     eax, eax
        ret
        .size   roce_guarded_store, . - roce_guarded_store

        .globl  roce_guarded_fault
        .hidden roce_guarded_fault
        .type   roce_guarded_fault,@function
# The end of the range, where a thread goes on after a fault.
roce_guarded_fault:
        mov     eax, 1
        ret
        .size   roce_guarded_fault, . - roce_guarded_fault
        .popsection

"""Static gates for the Triton kernels: what can be told about a GPU kernel without a GPU.

Each kernel is compiled ahead of time for four targets, and its intermediate code and machine code are read: does it
move each byte once, 16 at a time, without spills, without fp64, with 64-bit row offsets?

    python -m fused_replacements.gates --kernel rms_norm --target gfx942 --json gates.json

``compile`` makes the code, ``ir``, ``accesses``, ``offsets``, ``machine`` and ``usage`` read it, ``facts`` holds what
was read, ``check`` judges it, ``run`` does so for many kernels in processes of its own, ``report`` prints the table.
"""

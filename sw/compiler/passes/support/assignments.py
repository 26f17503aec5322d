"""Assignments of a statement, and the buffers that they read."""

from __future__ import annotations

from amaranth_vta.sw.compiler.nest.ir import Assign, NestBuffer, Stmt, walk
from amaranth_vta.sw.compiler.te.expr import Access
from amaranth_vta.sw.compiler.te.traverse import accesses


def assigns(stmt: Stmt) -> list[Assign]:
    """The assignments in ``stmt``, in program order."""
    return [part for part in walk(stmt) if isinstance(part, Assign)]


def written_buffers(stmt: Stmt) -> set[NestBuffer]:
    """The buffers that ``stmt`` assigns to."""
    return {assign.buffer for assign in assigns(stmt)}


def reads(stmt: Stmt) -> list[Access]:
    """The accesses in the values that ``stmt`` assigns."""
    return [access for assign in assigns(stmt) for access in accesses(assign.value)]


def read_buffers(stmt: Stmt) -> set[NestBuffer]:
    """The buffers that the values assigned by ``stmt`` read."""
    return {access.source for access in reads(stmt) if isinstance(access.source, NestBuffer)}

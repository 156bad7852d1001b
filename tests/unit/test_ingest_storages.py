"""Versions of tensors: who wrote last what a read sees."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from auditor.collect.arguments import TensorRef, element_types
from auditor.collect.storages import Storages
from auditor.graph.model import Op, OpGraph, contiguous_strides


def ref(
    tensor: int, storage: int, shape: tuple[int, ...], offset: int = 0, strides: tuple[int, ...] | None = None,
    dtype: str = "f32",
) -> TensorRef:  # fmt: skip
    steps = contiguous_strides(shape) if strides is None else strides
    return TensorRef(tensor, storage, offset, 4, "cpu", dtype, shape, steps)


def test_a_saved_tensor_is_found_under_its_new_id() -> None:
    storages = Storages(OpGraph())
    made = storages.fresh(ref(1, 7, (4, 8)))

    assert storages.read(ref(99, 7, (4, 8)), new_ids=True) is made


def test_a_reused_storage_id_is_another_storage() -> None:
    # GIVEN a value whose memory is freed and given to another output
    storages = Storages(OpGraph())
    first = storages.fresh(ref(1, 7, (4, 8)))
    second = storages.fresh(ref(2, 7, (4, 8)))

    # WHEN the storage id is read
    # THEN the last allocation answers, and the storages differ
    assert storages.read(ref(2, 7, (4, 8))) is second
    assert first.storage != second.storage


def test_a_read_larger_than_the_allocation_is_memory_reused_unseen() -> None:
    storages = Storages(OpGraph())
    small = storages.fresh(ref(1, 7, (4,)))

    assert storages.read(ref(3, 7, (400,))).storage != small.storage


def test_a_python_number_never_is_what_an_op_made() -> None:
    storages = Storages(OpGraph())
    made = storages.fresh(ref(1, 7, (), dtype="f64"))

    assert storages.read(ref(5, 7, (), dtype="f64")) is not made
    assert storages.read(ref(1, 7, (), dtype="f64")) is not made  # the number opened the storage anew


def test_a_python_number_in_backward_is_nothing_larger_that_was_there_before() -> None:
    # GIVEN memory that was freed and given to a number, unseen; tensors come back under other ids here
    storages = Storages(OpGraph())
    freed = storages.fresh(ref(1, 7, (8, 64)))

    number = storages.read(ref(5, 7, (), dtype="f64"), new_ids=True)

    assert (number.base, number.storage) != (freed, freed.storage)
    assert number.base is None
    assert storages.read(ref(6, 7, (), dtype="f64"), new_ids=True) is number  # saved, it comes back under another id


def test_a_view_made_unseen_is_a_view_of_what_was_written() -> None:
    storages = Storages(OpGraph())
    whole = storages.fresh(ref(1, 7, (4, 8)))

    half = storages.read(ref(2, 7, (4, 4), 4, (8, 1)))

    assert half.base is whole
    assert half.storage == whole.storage


def test_writing_a_part_makes_a_new_version_of_the_whole() -> None:
    # GIVEN a whole and a view of its second half
    storages = Storages(OpGraph())
    whole = storages.fresh(ref(1, 7, (4, 8)))
    view = storages.view(ref(2, 7, (2, 8), 16), whole)

    # WHEN the half is overwritten
    part, after = storages.overwrite(view, ref(2, 7, (2, 8), 16))

    # THEN reads of the whole and of the half see new versions; the untouched half need not
    assert storages.read(ref(1, 7, (4, 8))) is after is not whole
    assert storages.read(ref(2, 7, (2, 8), 16)) is part
    assert part.base is after
    assert after.base is None


def test_writing_all_of_it_through_a_view_replaces_the_whole() -> None:
    storages = Storages(OpGraph())
    whole = storages.fresh(ref(1, 7, (4, 8)))
    flat = storages.view(ref(2, 7, (32,)), whole)

    (after,) = storages.overwrite(flat, ref(2, 7, (32,)))

    assert storages.read(ref(1, 7, (4, 8))).base is after


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["fresh", "write", "read"])), max_size=40))
def test_a_read_sees_the_last_writer(steps: list[tuple[int, str]]) -> None:
    # GIVEN any order of allocations, writes and reads on four storage ids
    graph = OpGraph()
    storages = Storages(graph)
    writer: dict[int, Op | None] = {}
    for tensor, (storage, action) in enumerate(steps):
        here = ref(tensor, storage, (4,))
        if action == "read":
            # THEN each read returns what was written last
            assert storages.read(here).producer is writer.get(storage)
            continue
        old = storages.read(here) if action == "write" else None
        outputs = storages.overwrite(old, here) if old else (storages.fresh(here),)
        args = () if old is None else (old,)
        writer[storage] = graph.add(Op(0, "aten.fill_", args, outputs))


def test_type_strings_are_split_at_their_own_commas() -> None:
    assert element_types("GenericList[Int,Int]") == ("Int", "Int")
    assert element_types("GenericList[Tensor(c10::complex<float>),None]") == ("Tensor(c10::complex<float>)", "None")
    assert element_types("GenericList[GenericList[Int,Int],Int]") == ("GenericList[Int,Int]", "Int")
    assert element_types("Tensor(float)") == ()
    assert element_types("GenericList[]") == ()

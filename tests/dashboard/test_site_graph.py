"""The part of a graph around a site is drawn as the whole graph would be."""

from __future__ import annotations

from pathlib import Path

import pytest
from audited import audited, graph
from hypothesis import given, settings
from hypothesis import strategies as st

from auditor.graph.tables import from_tables, to_tables
from auditor.report.subgraph import Picture, after, before
from auditor.store import Store, StoredRun
from dashboard.data.site_graph import site_graph

VIEWS = """
x: f32[4, 8]
w: f32[8]
a = aten.exp(x)
b = aten.mul(a, w)
v = aten.view(b, [32])
t = aten.view(v, [8, 4])
c = aten.neg(t)
d = aten.add(c, 1.0)
e = aten.mm(t, x)
return d, e
"""


def told(picture: Picture | None) -> tuple[list[tuple[str, ...]], list[tuple[object, ...]]]:
    """What a picture shows, whatever its ops are numbered."""
    assert picture is not None
    titles = {key: (n.kind, n.title, *n.lines) for key, n in picture.nodes.items()}
    edges = [(titles[e.tail], titles[e.head], e.label, e.outside, e.via) for e in picture.edges]
    return list(titles.values()), edges


@pytest.mark.parametrize("text", [None, VIEWS])
def test_every_site_is_drawn_alike(store: Store, text: str | None) -> None:
    whole = graph() if text is None else graph(text)
    run = stored(store, whole)

    sites = [place for finding in run.document.findings for place in finding.places]

    assert sites
    for site in sites:
        cut = site_graph(run, site)
        assert cut is not None
        part, local = cut
        drawn = before(part, local)
        loaded = from_tables(run.tables)
        assert told(drawn) == told(before(loaded, site))
        assert drawn is not None
        full = before(loaded, site)
        assert full is not None
        assert told(after(drawn, local, "fused")) == told(after(full, site, "fused"))


@settings(max_examples=25)
@given(data=st.data())
def test_any_run_of_ops_is_drawn_alike(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    whole = graph(VIEWS)
    with Store.open(Path(tmp_path_factory.mktemp("site"))) as store:
        run = stored(store, whole)
        ops = data.draw(st.sets(st.integers(0, len(whole.ops) - 1), min_size=1))
        site = run.document.findings[0].places[0]
        site.ops = sorted(ops)
        cut = site_graph(run, site)
        assert cut is not None
        expected = before(from_tables(run.tables), site)
        if expected is None:
            assert before(*cut) is None
        else:
            assert told(before(*cut)) == told(expected)


def test_only_what_is_near_is_kept(store: Store) -> None:
    lines = ["x0: f32[64]", *(f"x{i + 1} = aten.neg(x{i})" for i in range(300)), "return x300"]
    run = stored(store, graph("\n".join(lines)))
    site = run.document.findings[0].places[0]
    site.ops = [150, 151]

    cut = site_graph(run, site)

    assert cut is not None
    assert [op.name for op in cut[0].ops] == ["aten.neg"] * 4
    assert cut[1].ops == [1, 2]


def test_a_run_without_tables_and_a_site_out_of_range(store: Store) -> None:
    run = stored(store, graph())
    site = run.document.findings[0].places[0]
    bare = store.load(store.save(run.document, {}))

    assert site_graph(bare, site) is None
    site.ops = [10_000]
    assert site_graph(run, site) is None


def stored(store: Store, whole: object) -> StoredRun:
    return store.load(store.save(audited(whole), to_tables(whole)))  # type: ignore[arg-type]

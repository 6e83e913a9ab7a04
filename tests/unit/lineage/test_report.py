from __future__ import annotations

import re
from html.parser import HTMLParser

from tests.fakes.lineage_chain import SHARD, Chain, TickingClock
from tuneline.lineage.audit import audit
from tuneline.lineage.findings import AuditResult, Finding, Severity
from tuneline.lineage.report import render_html, render_text

VOID = {"meta", "br", "path", "rect"}


class Page(HTMLParser):
    """Checks that tags nest; collects ids, links and attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.add(tag)
        self.attributes.update(values)
        if tag not in VOID:
            self.open.append(tag)
        if "id" in values:
            self.ids.append(str(values["id"]))
        if tag == "a":
            self.links.append(str(values["href"]))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def look(chain: Chain, target: str = "local-tiny@1") -> AuditResult:
    return audit(target, store=chain.store, clock=TickingClock())


def test_the_page_is_whole_and_needs_nothing_from_outside(chain: Chain) -> None:
    html = render_html(look(chain))
    page = Page(html)
    assert page.open == []
    assert not page.tags & {"script", "link", "img", "iframe", "object", "form"}
    assert not [name for name in page.attributes if name.startswith("on") or name == "src"]
    assert all(link.startswith("#") for link in page.links)
    assert "url(" not in html
    assert "@import" not in html
    assert set(re.findall(r"https?://[^\"' <]+", html)) == {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in html
    assert "prefers-color-scheme: dark" in html


def test_every_node_of_the_graph_leads_to_its_row(chain: Chain) -> None:
    page = Page(render_html(look(chain)))
    assert len(page.ids) == len(set(page.ids)) == 12
    assert set(page.links) == {f"#{name}" for name in page.ids}


def test_it_holds_verdict_findings_files_parameters_and_executions(chain: Chain) -> None:
    html = render_html(look(chain))
    for text in (
        "VERIFIED",
        "None.",
        SHARD,
        "train_learning_rate",
        "1e-06",
        "sha256:" + chain.artifacts["hf"].digest,
        "licence",
        "apache-2.0",
    ):
        assert text in html
    (chain.path("hf") / SHARD).write_bytes(b"x")
    html = render_html(look(chain))
    assert "MISMATCH" in html
    assert "CHANGED: recorded 67 bytes, found 1 bytes" in html


def test_equal_audits_give_equal_pages(chain: Chain) -> None:
    assert render_html(look(chain)) == render_html(look(chain))


def test_hostile_text_stays_text(chain: Chain) -> None:
    bad = '<script>alert("x")</script>&\x00\x1b[31m'
    result = AuditResult(bad, 0.0, True, bad, findings=(Finding(Severity.MISMATCH, bad, bad, bad),))
    html = render_html(result)
    assert "script" not in Page(html).tags
    assert "\x00" not in html
    assert "\x1b" not in html
    assert "&lt;script&gt;" in html
    (chain.path("hf") / '<img src=x onerror="1">').write_bytes(b"x")
    page = Page(render_html(look(chain)))
    assert "img" not in page.tags


def test_candidates_are_listed(chain: Chain) -> None:
    chain.store.put_artifact(type(chain.artifacts["hf"])("hf", "/a/copy", chain.artifacts["hf"].digest))
    result = look(chain, f"sha256:{chain.artifacts['hf'].digest}")
    assert "/a/copy" in render_html(result)
    assert "may be   hf  /a/copy" in render_text(result)
    assert "No graph is known" in render_html(result)


def test_the_text_says_what_who_from_what_and_what_now(chain: Chain) -> None:
    text = render_text(look(chain))
    assert text.splitlines()[0] == "VERIFIED  local-tiny@1"
    assert "made by  tlaaaaaaaaaa/convert/1 (COMPLETE, " in text
    assert f"from     VERIFIED    dataset     {chain.path('dataset')}" in text
    assert "files    3 SAME" in text
    assert text.endswith("\n5 of 5 artifacts verified by their bytes; 6 executions in the chain\n")
    (chain.path("hf") / SHARD).unlink()
    text = render_text(look(chain))
    assert f"MISMATCH  {chain.path('hf')}/{SHARD}: MISSING: recorded 67 bytes, found none\n  next: restore" in text


def test_terminal_control_characters_do_not_reach_the_terminal() -> None:
    text = render_text(AuditResult("x\x1b[31m", 0.0, True, "", findings=(Finding(Severity.INFO, "a\x1b]0;b", "\x07\x7f"),)))
    assert not set(text) & set("\x1b\x07\x7f")

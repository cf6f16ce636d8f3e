"""The page at `/`: its files as they lie there, and what Chromium makes of them."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agentspec.answer import Answer, TokenEvent
from agentspec.chat.tools.base import TextDelta
from agentspec.cli.print_config import print_config
from agentspec.control.cost import CostCurve
from agentspec.engine.stats import SourceCount, TurnStats
from agentspec.server import static
from agentspec.server.live import Live
from agentspec.server.security import CONTENT_POLICY
from tests.server import browser as chromium
from tests.server.conftest import HI

pytestmark = pytest.mark.program

FOLDER = Path(static.__file__).parent / "page"
FILES = sorted(path for path in FOLDER.iterdir() if path.is_file())
TEXTS = {path.name: path.read_text("utf-8") for path in FILES}
CODE = {name: text for name, text in TEXTS.items() if name.endswith(".js")}
LIVE = "document.querySelector('#state').dataset.state === 'live'"
HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=2</script>&lt;b&gt;'

# ---- the files


@pytest.mark.parametrize("name", TEXTS)
def test_nothing_is_asked_from_outside(name: str) -> None:
    names = {"http://www.w3.org/2000/svg"}  # a namespace, which nothing fetches
    assert set(re.findall(r"https?://[^\"'\s]*", TEXTS[name])) <= names
    assert not re.search(
        r"[\"'(]//|\burl\(|@import|sendBeacon|WebSocket|serviceWorker", TEXTS[name]
    )


@pytest.mark.parametrize("name", CODE)
def test_texts_are_only_ever_set_as_text(name: str) -> None:
    into_markup = r"(inner|outer)HTML|insertAdjacentHTML|document\.write|DOMParser|setHTML|srcdoc"
    as_code = r"\beval\(|new Function|set(Timeout|Interval)\([\"'`]|javascript:|createContextualFr"
    kept = r"localStorage|document\.cookie|indexedDB"
    found = re.search(f"{into_markup}|{as_code}|{kept}", CODE[name])
    assert not found, found


def test_the_content_policy_refuses_nothing_of_it() -> None:
    assert "unsafe" not in CONTENT_POLICY
    page = TEXTS["index.html"]
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|<iframe|<form[^>]*action", page)
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", page))
    for text in CODE.values():
        assert not re.search(r"[\"']style[\"']|cssText|createElement\([\"']style", text)


def test_what_it_names_is_there() -> None:
    page = TEXTS["index.html"]
    for name in re.findall(r'(?:src|href)="page/([^"]+)"', page):
        assert name in TEXTS
    for name in [n for text in CODE.values() for n in re.findall(r'from "\./([^"]+)"', text)]:
        assert name in CODE
    ids = set(re.findall(r'\sid="([^"]+)"', page))
    for text in CODE.values():
        assert set(re.findall(r'\$\("([^"]+)"\)', text)) <= ids
    for name in re.findall(r'(?:aria-labelledby|aria-describedby|for)="([^"]+)"', page):
        assert name in ids
    styles = TEXTS["page.css"]
    for source in re.findall(r'"(\w+)"', CODE["sources.js"].split("KNOWN = ")[1].split("]")[0]):
        assert f".s-{source} " in styles


def test_it_is_served_as_it_is_without_a_key(client: Any) -> None:
    here = client(keys=("a-good-key",))
    for name, text in TEXTS.items():
        got = here.get(f"/page/{name}")
        assert got.status_code == 200
        assert got.text == text
        assert got.headers["content-security-policy"] == CONTENT_POLICY
    assert here.get("/").text == TEXTS["index.html"]
    assert here.get("/").headers["content-type"].startswith("text/html")
    assert here.get("/page/page.js").headers["content-type"].startswith("text/javascript")
    assert here.get("/favicon.ico").headers["content-type"].startswith("image/svg+xml")
    assert here.get("/page/nothing.js").status_code == 404
    assert here.get("/page/..%2Fstatic.py").status_code == 404


# ---- in the browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Browser]:
    path = chromium.find()
    if path is None:
        pytest.skip("no Chromium on the PATH; install one or name it in $CHROMIUM")
    running = chromium.Browser(path, tmp_path_factory.mktemp("profile"))
    yield running
    running.close()


@pytest.fixture
def look(browser: chromium.Browser) -> Iterator[Callable[..., chromium.Page]]:
    """A tab at this address; no test may leave an error in it."""
    opened: list[chromium.Page] = []

    def open_page(url: str, *, until: str = LIVE, **options: Any) -> chromium.Page:
        opened.append(browser.page(url, **options))
        opened[-1].wait(until)
        return opened[-1]

    yield open_page
    for page in opened:
        assert page.problems() == []
        page.close()


Pieces = list[tuple[str, str | None]]
SOME: Pieces = [("def ", None), ("area(w, h):", "lookup"), ("\n    return ", "edit"), ("w", None)]


def feed(
    server: Any, pieces: Pieces, *, client: str = "opencode/1.0 (x64)", end: str | None = None
) -> tuple[Any, TurnStats]:
    """An answer as the engine would make it; every piece is one token, one more was refused."""
    stats = TurnStats(prompt_tokens=500, cached_tokens=400, prefill_seconds=0.5)
    live = server.state.live.begin("chat", client)
    answer = Answer("local", stats)
    for text, source in pieces:
        stats.tokens += 1
        stats.passes += source is None
        if source is not None:
            count = stats.sources.setdefault(source, SourceCount())
            count.drafted, count.accepted = count.drafted + 2, count.accepted + 1
            stats.drafted, stats.accepted = stats.drafted + 2, stats.accepted + 1
        live.add(TokenEvent(0, (TextDelta(text),), source))
    stats.waiting_seconds = 2.0  # another answer had its turns
    stats.total_seconds = 2.5 + stats.tokens / 30.0
    live.answers(answer)
    if end is not None:
        server.state.live.end(live, end)
    return live, stats


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Live, "_rows", lambda self: 16.0)


def test_without_a_request_it_says_how_to_make_one(serve: Any, look: Any) -> None:
    server = serve()
    page = look(server.url)
    command = page.text("#curl")
    assert command.startswith(f"curl -N {server.url}/v1/chat/completions")
    assert "Authorization" not in command
    json.loads(command.split("-d '")[1].removesuffix("'"))
    words = page.text("#print-config").split()
    assert words == ["agentspec", "print-config", "opencode", "--url", server.url]
    others = page.run("[...document.querySelectorAll('#empty code')].map((c) => c.textContent)")
    assert len(others) > 3
    for name in [words[2], *others]:
        made = CliRunner().invoke(print_config, [name, *words[3:]])
        assert made.exit_code == 0, made.output
        assert server.url in made.output
    assert page.text("#plain") == "–"
    assert page.text("#answers") == page.text("#drafts") == ""
    assert all(url.startswith(server.url) for url in page.requests())


def test_a_request_that_runs(serve: Any, look: Any, measured: None) -> None:
    server = serve()
    live, stats = feed(server, SOME)
    page = look(server.url)
    row = "#requests tbody tr"
    assert page.text(f"{row} .who") == "opencode/1.0"
    assert page.text(f"{row} .how") == "writing · chat"
    bar = f"document.querySelector('{row} [role=progressbar]')"
    assert page.run(f"[{bar}.ariaValueNow, {bar}.ariaValueMax]") == ["500", "500"]
    assert page.run(f"[...{bar}.children].map((part) => part.style.width)") == ["80%", "20%"]
    assert page.text(f"{row} .prompt") == "500 of 500, 400 reused"
    numbers = f"[...document.querySelectorAll('{row} .number')].map((cell) => cell.textContent)"
    assert page.run(numbers)[:3] == ["4", "30.0", "≈ 16.0"]
    assert page.text("#fast") == "30.0"
    assert page.text("#plain") == "≈ 16.0"
    assert "estimate" in page.text("#plain-note")
    assert page.text("#gain") == "≈ ×1.88"
    assert page.text("#length") == "2.00"
    assert page.text("#rate") == "50 %"
    assert page.text("#reuse") == "80 %"
    assert page.text("#kv-note").endswith("of 1,048,576")
    assert page.text("#queue") == "0/1"
    # it goes on
    live.add(TokenEvent(0, (TextDelta(" * h"),), "lookup"))
    stats.tokens += 1
    page.wait("document.querySelector('#text').textContent.endsWith('w * h')")
    page.wait(f"{numbers}[0] === '5'")
    server.state.live.end(live, "stop")
    page.wait("document.querySelector('#requests').hidden")
    assert page.text("#list .how") == "done"


def test_each_token_shows_who_proposed_it(serve: Any, look: Any) -> None:
    server = serve()
    feed(server, [*SOME, (" * ", "lookup"), ("h", "unheard_of")], end="stop")
    page = look(server.url)
    page.wait("document.querySelectorAll('#text span').length === 6")
    spans = page.run(
        "[...document.querySelectorAll('#text span')].map((s) => [s.textContent, s.className])"
    )
    styles = ["s-own", "s-lookup", "s-edit", "s-own", "s-lookup", "s-other"]
    texts = ["def ", "area(w, h):", "\n    return ", "w", " * ", "h"]
    assert spans == [list(pair) for pair in zip(texts, styles, strict=True)]
    back = "[...document.querySelectorAll('#text span')].map((s) => getComputedStyle(s).background)"
    colours = page.run(back)
    assert len(set(colours)) == 4
    assert colours[0] == colours[3] != colours[1] == colours[4]
    legend = page.run("[...document.querySelectorAll('#legend button')].map((b) => b.innerText)")
    assert [re.sub(r"\s+", " ", text) for text in legend] == [
        "lookup 2 of 4 50 %",
        "edit 1 of 2 50 %",
        "unheard of 1 of 2 50 %",
        "target's own 2",
    ]
    page.click("#legend .s-edit")
    dim = "[...document.querySelectorAll('#text .dim')].map((s) => s.textContent)"
    assert page.run(dim) == [text for text in texts if "return" not in text]
    page.click("#legend .s-edit")
    assert page.run(dim) == []
    table = page.run("document.querySelector('#sources tbody').innerText")
    assert re.search(r"lookup\s+2\s+4\s+50 %", table)
    assert re.search(r"target's own\s+2\s+–", table)
    assert page.run("document.querySelectorAll('#chart path.kept[d^=M]').length") == 4
    assert page.run("document.querySelectorAll('#chart path.vain[d^=M]').length") == 3


def test_hostile_texts_stay_texts(serve: Any, look: Any) -> None:
    server = serve()
    feed(server, [(HOSTILE, HOSTILE), ("</pre>" + HOSTILE, None)], client=HOSTILE, end="stop")
    feed(server, [(HOSTILE, "constructor")], client=f"x{HOSTILE}")
    page = look(server.url)
    page.wait("document.querySelectorAll('#text span').length === 1")
    page.click("#list li:last-child button")
    page.wait("document.querySelectorAll('#text span').length === 2")
    assert page.run("document.querySelector('#text').textContent") == f"{HOSTILE}</pre>{HOSTILE}"
    time.sleep(0.2)
    assert page.run("typeof window.hacked") == "undefined"
    assert page.run("document.querySelectorAll('img, b, body script').length") == 0
    assert all(url.startswith(server.url) for url in page.requests())


def test_a_real_answer(serve: Any, chat: Any, look: Any) -> None:
    reply = "def area(width, height):\n    return width * height\n"
    cost = CostCurve.from_points({1: 1.0, 64: 1.1})
    server = serve(chat.engine(chat.writing(reply), cost=cost))
    page = look(server.url)
    body = {"messages": HI, "prediction": {"type": "content", "content": reply}}
    request = urllib.request.Request(
        f"{server.url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", "user-agent": "a-client/2"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        answer.read()
    page.wait(f"document.querySelector('#text').textContent === {json.dumps(reply)}")
    assert page.run("document.querySelectorAll('#text .s-predicted').length") > 0
    assert page.text("#list .who") == "a-client/2"
    assert page.run("document.querySelector('#empty').hidden")


def test_the_key_is_asked_for_and_kept_in_the_tab_only(serve: Any, look: Any) -> None:
    server = serve(keys=("a-good-key",))
    feed(server, SOME, end="stop")
    page = look(server.url, until="!document.querySelector('#key').hidden")
    assert page.text("#board") == ""
    assert page.run("document.activeElement.id") == "key-field"
    for key, problem in [("bad key\u2019", "ASCII"), ("another-key", "refuses")]:
        page.type(key)
        page.press("Enter", 13)
        page.click("#key button")
        page.wait(f"document.querySelector('#key-problem').textContent.includes('{problem}')")
        page.run("document.querySelector('#key-field').value = ''")
    page.type("a-good-key")
    page.click("#key button")
    page.wait(LIVE)
    page.wait("document.querySelector('#text').textContent.length")
    assert page.text("#key") == ""
    assert "a-good-key" not in page.run("document.documentElement.outerHTML")
    assert page.run("[Object.keys(localStorage).length, document.cookie]") == [0, ""]
    assert page.run("Object.values(sessionStorage)") == ["a-good-key"]
    assert not any("a-good-key" in url for url in page.requests())
    page.call("Page.reload")
    page.wait(LIVE)
    assert "Authorization: Bearer $AGENTSPEC_API_KEY" in page.run(
        "document.querySelector('#curl').textContent"
    )
    page.click("#forget")
    page.wait("!document.querySelector('#key').hidden && !sessionStorage.length")


def test_it_finds_a_server_that_was_started_again(serve: Any, look: Any) -> None:
    first = serve()
    feed(first, [("before", "lookup")] * 5, end="stop")
    page = look(first.url)
    page.wait("document.querySelector('#text').textContent.startsWith('before')")
    first.close()
    page.wait("document.querySelector('#state').dataset.state === 'lost'")
    again = serve(port=first.port)
    feed(again, [("after", "edit")], end="stop")
    page.wait(LIVE)
    page.wait("document.querySelector('#text').textContent === 'after'")
    assert page.run("document.querySelectorAll('#list li').length") == 1


def test_an_open_page_does_not_keep_the_server(
    serve: Any, look: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve()
    page = look(server.url)
    server.signal()
    server.thread.join(120)
    assert not server.thread.is_alive()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    page.wait("document.querySelector('#state').dataset.state === 'lost'")


def test_it_says_when_the_server_finishes(serve: Any, look: Any) -> None:
    server = serve()
    page = look(server.url)
    server.state.line.draining = True
    page.wait("document.querySelector('#state').textContent.startsWith('finishing')")
    server.state.line.draining = False


CONTRAST = """(() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const paint = (colours) => {
    for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => v / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  for (const each of document.querySelectorAll("body *")) {
    const words = [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!words || !each.checkVisibility() || each.closest("svg, noscript")) continue;
    const backs = [];
    for (let at = each; at; at = at.parentElement) {
      backs.unshift(getComputedStyle(at).backgroundColor);
    }
    const back = light(paint(backs));
    const front = light(paint([...backs, getComputedStyle(each).color]));
    const ratio = (Math.max(back, front) + 0.05) / (Math.min(back, front) + 0.05);
    if (ratio < 4.5) found.push([each.textContent.slice(0, 30), ratio]);
  }
  return found;
})()"""


CUT = """
[...document.querySelectorAll('#tiles .faint')]
    .filter((each) => each.scrollWidth > each.clientWidth)
    .map((each) => each.textContent)
"""


def test_it_is_readable(serve: Any, look: Any, measured: None) -> None:
    server = serve()
    kinds = ["lookup", "edit", "habit", "skeleton", "predicted", "draft_model", "forced", "x", None]
    pieces: Pieces = [(f"{kind} = some_rather_long_name\n", kind) for kind in kinds]
    ends = ("stop", "failed", "cancelled", None)
    for end in ends:
        feed(server, pieces, client="a-client-with-a-long-name/1.2.3-beta.4 (linux)", end=end)
    page = look(server.url)
    page.wait("document.querySelectorAll('#text span').length === 9")
    for dark, back in ((False, "rgb(250, 249, 246)"), (True, "rgb(20, 22, 26)")):
        page.show(dark=dark, still=True)
        assert page.run("getComputedStyle(document.body).backgroundColor") == back
        for width in (375, 640, 1000, 1001, 1440):
            page.resize(width, 900)
            assert page.run("document.documentElement.scrollWidth") == width
            assert page.run(CUT) == []
            assert page.run(CONTRAST) == []


def colour(page: chromium.Page, selector: str) -> str:
    return str(page.run(f"getComputedStyle(document.querySelector('{selector}')).color"))


def test_a_slowdown_is_not_praised(serve: Any, look: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = [40.0]
    monkeypatch.setattr(Live, "_rows", lambda self: plain[0])
    server = serve()
    feed(server, SOME, end="stop")
    feed(server, SOME)
    page = look(server.url)
    warning, praise = {}, {}
    for dark in (False, True):
        page.show(dark=dark, still=True)
        assert page.text("#gain") == "≈ ×0.75"
        assert page.text("#gain-name") == "slower than plain"
        assert page.text("#fast-name") == "with drafts"
        assert "≈ ×0.75" in page.text("#gain-note")
        assert "slower than plain decoding, ≈ ×0.75" in page.text("#text-note")
        found = {
            colour(page, selector)
            for selector in (
                "#gain",
                "#fast",
                "#gain-note",
                "#list .gain",
                "#requests .number + td",
            )
        }
        (warning[dark],) = found
        assert page.run(CONTRAST) == []
    for plain[0], name in ((16.0, "speed-up"), (30.3, "as fast as plain")):
        page.wait(f"document.querySelector('#gain-name').textContent === '{name}'")
        for dark in (False, True):
            page.show(dark=dark, still=True)
            praise[dark, name] = colour(page, "#gain")
            assert colour(page, "#list .gain") != warning[dark]
            assert praise[dark, name] != warning[dark]
    for dark in (False, True):
        assert praise[dark, "speed-up"] != praise[dark, "as fast as plain"]


def test_no_speed_up_is_above_the_tokens_per_pass(
    serve: Any, look: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a row that was measured while the machine was busy
    monkeypatch.setattr(Live, "_rows", lambda self: 1.0)
    server = serve()
    feed(server, [("def ", None), *[("x", None)] * 30, ("y", "lookup")], end="stop")
    feed(server, SOME)
    page = look(server.url)
    page.wait("document.querySelectorAll('#list li').length === 2")
    gains = "[...document.querySelectorAll('#list .gain')].map((each) => each.textContent)"
    assert page.run(gains) == ["×2.00", "×1.03"]
    assert page.text("#gain") == "≈ ×2.00"
    assert page.text("#plain") == "≈ 15.0"
    assert page.text("#gain-note") == "since start ≈ ×1.03"


def test_nothing_is_estimated_where_nothing_was_drafted(
    serve: Any, look: Any, measured: None
) -> None:
    server = serve()
    alone: Pieces = [("only ", None), ("its own", None)]
    feed(server, alone, end="stop")
    feed(server, alone)
    page = look(server.url)
    page.wait("document.querySelectorAll('#list li').length === 2")
    assert page.text("#fast") == "30.0"
    assert page.text("#fast-name") == "speed"
    assert (page.text("#plain"), page.text("#plain-note")) == ("–", "nothing drafted yet")
    assert (page.text("#gain"), page.text("#gain-note")) == ("–", "nothing drafted")
    gains = "[...document.querySelectorAll('#list .gain')].map((each) => each.textContent)"
    assert page.run(gains) == ["–", "–"]
    assert (
        page.run("[...document.querySelectorAll('#requests tbody .number')][2].textContent") == "–"
    )
    assert "nothing drafted" in page.text("#text-note")
    assert "≈" not in page.run("document.querySelector('#answers').innerText")
    assert page.run("document.querySelector('.plain-line').getAttribute('d')") == ""
    # an answer with drafts beside them has its own
    feed(server, SOME)
    page.wait("document.querySelector('#gain').textContent === '≈ ×1.88'")
    assert page.run(gains) == ["×1.88", "–", "–"]
    assert page.text("#plain") == "≈ 16.0"


def test_it_moves_only_where_that_is_wanted(serve: Any, look: Any) -> None:
    server = serve()
    feed(server, SOME)
    moves = "getComputedStyle(document.querySelector('.prompt .bar i')).transitionDuration"
    page = look(server.url)
    assert page.run(moves) == "0.4s"
    page.show(still=True)
    assert page.run(moves) == "0s"


def test_it_works_from_the_keyboard(serve: Any, look: Any) -> None:
    server = serve()
    for name in ("first", "second"):
        feed(server, [(name, "lookup")], end="stop")
    page = look(server.url)
    page.wait("document.querySelector('#text').textContent === 'second'")
    reached = []
    for _ in range(6):
        page.press("Tab", 9)
        reached.append(page.run("document.activeElement.id || document.activeElement.className"))
        if reached[-1] == "chart":
            before = page.text("#reading")
            page.press("ArrowLeft", 37)
            assert page.text("#reading") != before
            assert page.run("document.activeElement.ariaValueNow") == "-2"
            assert page.run("document.activeElement.ariaValueText").startswith("2 s ago")
    assert reached == ["chart", "follow", "answer", "answer", "s-lookup", "text"]
    page.run("document.querySelector('#list button').focus()")
    page.press("ArrowDown", 40)
    page.run("document.activeElement.click()")
    page.wait("document.querySelector('#text').textContent === 'first'")
    assert page.run("document.activeElement.ariaPressed") == "true"
    feed(server, [("third", "lookup")], end="stop")
    page.wait("document.querySelectorAll('#list li').length === 3")
    # what was chosen stays, and keeps the focus
    assert page.run("document.querySelector('#text').textContent") == "first"
    assert page.run("document.activeElement.ariaPressed") == "true"
    page.click("#follow")
    page.wait("document.querySelector('#text').textContent === 'third'")


def test_everything_has_a_name(serve: Any, look: Any) -> None:
    server = serve()
    feed(server, SOME)
    page = look(server.url)
    page.wait("document.querySelectorAll('#text span').length === 4")
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    roles: dict[str, list[str]] = {}
    for node in nodes:
        if not node.get("ignored"):
            name = node.get("name", {}).get("value", "")
            roles.setdefault(node["role"]["value"], []).append(name)
    for role in ("button", "slider", "progressbar", "table", "region", "heading", "list"):
        assert roles[role], role
        assert all(roles[role]), (role, roles[role])
    assert any(re.search(r"opencode/1.0 writing 4 tok", name) for name in roles["button"])
    assert roles["status"] == [""]  # its text is what it says
    assert "columnheader" in roles
    assert "cell" in roles


def test_counters_become_columns(serve: Any, look: Any) -> None:
    page = look(serve().url)
    got = page.run(
        """(async () => {
          const { History } = await import("./page/history.js");
          const history = new History(2, 10);
          const answer = (tokens, accepted, drafted) => (
            { tokens, sources: { lookup: { drafted, accepted } } });
          const at = (time, totals, running = [], recent = []) =>
            history.add({ at: time, totals, running, recent });
          const old = { ...answer(8, 4, 8), at: 1000, first_token_seconds: 0, seconds: 4 };
          at(1004, answer(8, 4, 8), [], [old]);
          at(1006, answer(8, 4, 8), [answer(6, 6, 6)]);
          at(1008, answer(14, 10, 14));
          at(1010, answer(3, 0, 3));  // the server was started again
          return [history.columns(), history.rates("lookup")];
        })()"""
    )
    columns, rates = got
    assert [round(column["tokens"]) for column in columns] == [0, 0, 0, 0, 4, 4, 6, 0, 3, 0]
    assert [round(column["own"]) for column in columns] == [0, 0, 0, 0, 2, 2, 0, 0, 3, 0]
    assert rates[:4] == [None] * 4
    assert rates[4:7] == [0.5, 0.5, 5 / 7]
    assert rates[9] == pytest.approx(10 / 17)


def test_events_in_any_parts(serve: Any, look: Any) -> None:
    page = look(serve().url)
    text = 'event: live\ndata: {"a": 1}\n\n: nothing\n\nevent: pieces\ndata: 2\n\ndata: 3\n\nevent'
    got = page.run(
        f"""(async () => {{
          const {{ blocks }} = await import("./page/feed.js");
          const text = {json.dumps(text)};
          const seen = [];
          for (let cut = 0; cut <= text.length; cut++) {{
            let found = [];
            let buffer = "";
            for (const part of [text.slice(0, cut), text.slice(cut)]) {{
              buffer += part;
              let read = 0;
              for (const [name, data, end] of blocks(buffer)) {{
                found.push([name, data]);
                read = end;
              }}
              buffer = buffer.slice(read);
            }}
            seen.push(JSON.stringify(found));
          }}
          return [...new Set(seen)];
        }})()"""
    )
    (only,) = got
    assert json.loads(only) == [["live", '{"a": 1}'], ["pieces", "2"], ["message", "3"]]


def test_too_many_listeners_still_see_it(
    serve: Any, look: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentspec.server.live._MOST_READERS", 0)
    server = serve()
    feed(server, SOME, end="stop")
    page = look(server.url)
    page.wait("document.querySelectorAll('#text span').length === 4")
    assert f"{server.url}/api/live" in page.requests()

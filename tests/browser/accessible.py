"""Accessibility checks of a page.

The rules of axe-core (https://github.com/dequelabs/axe-core) of serious and critical impact run in the browser. Further
checks cover what they leave out: names and roles as Chromium computes them for assistive software, the size of click
targets, pages that are wider than the screen, and contrasts by WCAG 2.2 (1.4.3: 4.5, large text 3) from the colours
that are painted, in drawings too.
"""

from typing import Any

import pytest

_NEED_A_NAME = frozenset(
    ("button", "checkbox", "combobox", "dialog", "image", "img", "link", "navigation", "progressbar", "searchbox")
) | {"spinbutton", "textbox"}

_LOOK = """() => {
  const found = [];
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  const over = (top, low) => top.slice(0, 3).map((c, at) => c * (top[3] ?? 1) + low[at] * (1 - (top[3] ?? 1)));
  const behind = (element) => {
    const stack = [];
    for (let at = element; at; at = at.parentElement) stack.push(parse(getComputedStyle(at).backgroundColor));
    return stack.reverse().reduce((low, top) => over(top.length === 3 ? [...top, 1] : top, low), [255, 255, 255]);
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const parent = node.parentElement;
    if (!node.data.trim() || !parent.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    if (parent.closest("title, script, dialog:not([open]), .seen-by-readers, .skip, [disabled], option")) continue;
    const style = getComputedStyle(parent);
    const svg = parent.closest("svg");
    const ink = parse(svg ? style.fill : style.color);
    const box = svg?.querySelector(".node rect");
    const ground = box ? parse(getComputedStyle(box).fill) : behind(parent);
    const painted = over([...ink.slice(0, 3), (ink[3] ?? 1) * Number(style.opacity)], ground);
    const [high, low] = [light(painted), light(ground)].sort((a, b) => b - a);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < (large ? 3 : 4.5)) found.push(`contrast ${ratio.toFixed(2)}: ${node.data.trim().slice(0, 40)}`);
  }
  const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
  for (const id of new Set(ids.filter((one, at) => ids.indexOf(one) !== at))) found.push(`the id ${id} is there twice`);
  for (const label of document.querySelectorAll("label[for]"))
    if (!document.getElementById(label.htmlFor)) found.push(`a label is for ${label.htmlFor}, which is not there`);
  for (const button of document.querySelectorAll("button, .button, select, input:not([type=hidden])")) {
    const box = button.getBoundingClientRect();
    if (box.width && Math.min(box.width, box.height) < (button.type === "checkbox" ? 15 : 24))
      found.push(`a target of ${box.width.toFixed()} x ${box.height.toFixed()}: ${button.outerHTML.slice(0, 80)}`);
  }
  const levels = [...document.querySelectorAll("main h1, main h2, main h3")].map((one) => Number(one.tagName[1]));
  if (levels[0] !== 1 || levels.some((level, at) => at && level > levels[at - 1] + 1)) found.push(`headings ${levels}`);
  const wider = document.documentElement.scrollWidth - innerWidth;
  if (wider > 0) found.push(`wider than the screen by ${wider}`);
  return found;
}"""


def problems(tab: Any) -> list[str]:
    """Everything found on the page that a tab shows."""
    session = tab.context.new_cdp_session(tab)
    tree = session.send("Accessibility.getFullAXTree")["nodes"]
    session.detach()
    nameless = [f"a {_role(node)} without a name" for node in tree if _is_nameless(node)]
    roles = {_role(node) for node in tree if not node.get("ignored")}
    missing = [] if roles & {"main", "dialog"} else ["no main"]  # a dialog hides what is below it
    return [*tab.evaluate(_LOOK), *nameless, *missing, *_serious(tab)]


def _serious(tab: Any) -> list[str]:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    found = axe.run(tab).response["violations"]
    return [
        f"{one['id']}: {node['html'][:120]}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


def _role(node: dict[str, Any]) -> str:
    return str(node.get("role", {}).get("value", ""))


def _is_nameless(node: dict[str, Any]) -> bool:
    named = str(node.get("name", {}).get("value", "")).strip()
    return not node.get("ignored") and _role(node) in _NEED_A_NAME and not named

// SPDX-License-Identifier: Apache-2.0
// Search without a server: the index is a script, loaded when the box is first used, so that it works from file:// too.
(() => {
  const box = document.querySelector(".search input"), list = document.querySelector(".search ol"), root = document.documentElement.dataset.root;
  let index = null, chosen = -1;
  const load = () => {
    if (index !== null) return;
    index = [];
    const script = document.createElement("script");
    script.src = root + "search-index.js";
    script.onload = () => { index = window.PITH_INDEX.map(([url, page, heading, text]) => ({ url, page, heading, text, low: text.toLowerCase(), head: (page + " " + heading).toLowerCase() })); show(); };
    document.head.append(script);
  };
  const score = (entry, words) => {
    let sum = 0;
    for (const word of words) {
      const head = entry.head.indexOf(word), at = entry.low.indexOf(word);
      if (head < 0 && at < 0) return 0;
      sum += (head >= 0 ? 20 : 0) + (entry.heading.toLowerCase() === word ? 40 : 0) + (at >= 0 ? 5 - Math.min(4, at / 400) : 0);
    }
    return sum;
  };
  const excerpt = (entry, word) => {
    const at = Math.max(0, entry.low.indexOf(word)), from = Math.max(0, at - 50);
    const piece = document.createElement("small");
    piece.append((from ? "…" : "") + entry.text.slice(from, at));
    if (entry.low.startsWith(word, at)) {
      const mark = document.createElement("mark");
      mark.textContent = entry.text.slice(at, at + word.length);
      piece.append(mark, entry.text.slice(at + word.length, at + 110));
    } else piece.append(entry.text.slice(at, at + 110));
    return piece;
  };
  const show = () => {
    const words = box.value.toLowerCase().split(/\s+/).filter((w) => w.length > 1);
    list.replaceChildren();
    chosen = -1;
    if (!words.length || !index) return;
    const found = index.map((entry) => [score(entry, words), entry]).filter(([points]) => points > 0).sort((a, b) => b[0] - a[0]).slice(0, 14);
    for (const [, entry] of found) {
      const link = document.createElement("a");
      link.href = root + entry.url;
      link.append(entry.heading && entry.heading !== entry.page ? entry.page + " › " + entry.heading : entry.page, excerpt(entry, words[0]));
      const item = document.createElement("li");
      item.append(link);
      list.append(item);
    }
    if (!found.length) list.innerHTML = "<li><a>Nothing found</a></li>";
  };
  const choose = (by) => {
    const links = [...list.querySelectorAll("a[href]")];
    if (!links.length) return;
    chosen = (chosen + by + links.length) % links.length;
    links.forEach((link, i) => link.classList.toggle("on", i === chosen));
    links[chosen].scrollIntoView({ block: "nearest" });
  };
  box.addEventListener("focus", load);
  box.addEventListener("input", () => { load(); show(); });
  box.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") choose(1), event.preventDefault();
    else if (event.key === "ArrowUp") choose(-1), event.preventDefault();
    else if (event.key === "Enter") (list.querySelector("a.on") || list.querySelector("a[href]"))?.click();
    else if (event.key === "Escape") list.replaceChildren(), box.blur();
  });
  document.addEventListener("click", (event) => { if (!event.target.closest(".search")) list.replaceChildren(); });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !/INPUT|TEXTAREA/.test(document.activeElement.tagName)) box.focus(), event.preventDefault();
  });
  if (matchMedia("(max-width:52rem)").matches) document.querySelector(".side details")?.removeAttribute("open");
  const asked = new URLSearchParams(location.search).get("q");
  if (asked) { box.value = asked; load(); show(); }
})();

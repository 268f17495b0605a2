// Text whose contrast with what lies behind it is under WCAG's 4.5, and what lies beyond its place.
() => {
  const rgb = (text) => (text.match(/[\d.]+/g) ?? [0, 0, 0, 0]).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((part) => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  }).reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (node) => {
    for (let one = node; one; one = one.parentElement) {
      const found = rgb(getComputedStyle(one).backgroundColor);
      if (found.length === 3 || found[3] > 0.99) return found;
    }
    return [255, 255, 255];
  };
  const findings = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((one) => one.nodeType === 3 && one.data.trim());
    const box = node.getBoundingClientRect();
    if (!own || !box.width || !node.checkVisibility() || node.closest(".unseen, noscript, :disabled, .skip")) continue;
    const [front, back] = [light(rgb(getComputedStyle(node).color)), light(behind(node))];
    const ratio = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    if (ratio < 4.5) findings.push(`${node.className || node.tagName} ${node.textContent.slice(0, 20)}: ${ratio.toFixed(1)}`);
  }
  const over = document.documentElement.scrollWidth - innerWidth;
  if (over > 0) findings.push(`the page is ${over} px too wide`);
  const cards = [...document.querySelectorAll(".card, .figures, .bar")].filter((one) => one.checkVisibility());
  for (const card of cards) {
    for (const child of card.querySelectorAll("h2, h3, button, b, dd, p, input, select")) {
      if (!child.checkVisibility() || child.closest(".viewport, .turns, .unseen")) continue;
      const [inner, outer] = [child.getBoundingClientRect(), card.getBoundingClientRect()];
      if (inner.right > outer.right + 1 || inner.left < outer.left - 1) findings.push(`${child.textContent.slice(0, 20)} leaves its card`);
    }
  }
  const boxes = cards.map((one) => [one.id, one.getBoundingClientRect()]);
  for (const [name, a] of boxes) for (const [other, b] of boxes) {
    if (name >= other || name === "" || other === "") continue;
    if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1) findings.push(`${name} over ${other}`);
  }
  return findings;
}

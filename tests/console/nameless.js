// Controls without a name, images without a text, headings that leave out a level.
() => {
  const findings = [];
  for (const node of document.querySelectorAll("button, input, select, textarea, [role=img], canvas, meter")) {
    if (!node.checkVisibility()) continue;
    const name = node.getAttribute("aria-label") || node.textContent.trim() || node.labels?.[0]?.textContent.trim();
    if (!name) findings.push(node.outerHTML.slice(0, 80));
  }
  let before = 0;
  for (const head of document.querySelectorAll("h1, h2, h3")) {
    if (!head.checkVisibility()) continue;
    const level = Number(head.tagName[1]);
    if (level > before + 1) findings.push(`${head.textContent} skips a level`);
    before = level;
  }
  for (const id of ["main", "header.bar", "nav[aria-label]"]) {
    if (document.querySelectorAll(id).length !== 1) findings.push(`no one ${id}`);
  }
  return findings;
}

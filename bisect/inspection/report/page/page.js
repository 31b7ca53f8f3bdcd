"use strict";
/* The page as a whole: behind the answers, which stand in it already, a section for each result, then the commands; then the plots. */
{
  const main = document.getElementById("main");
  const sections = lb.parts.map((part, i) => ({ part, id: `result-${i + 1}`, title: lb.titleOf(part), shown: lb.describe(part) }));
  const list = (items) => lb.element("ul", null, items.map(([id, text]) => lb.element("li", null, lb.element("a", { href: `#${id}` }, text))));
  document.getElementById("contents").replaceChildren(list([["answers", sections.length > 1 ? "Answers" : "Answer"], ...sections.map(({ id, title }) => [id, title]), ["again", "How to get each number again"]]));
  for (const box of document.querySelectorAll(".card .command")) box.replaceWith(lb.copied(box.firstChild, box.textContent));

  for (const { part, id, title, shown } of sections) {
    const section = lb.element("section", { "aria-labelledby": id }, lb.element("h2", { id }, title), lb.element("p", { class: "source" }, "From ", lb.text(part.name)));
    for (const block of shown.blocks) {
      section.append(lb.element("h3", null, block.title));
      section.append(...block.nodes);
      if (block.command) section.append(lb.element("p", { class: "source" }, "Again: ", lb.element("code", null, lb.plain(block.command))));
    }
    main.append(section);
  }

  const again = sections.map(({ part, title, shown }) => [lb.element("h3", null, title), shown.commands.map(([what, line]) => [lb.element("p", { class: "source" }, what), lb.command(line)]).flat()]).flat(2);
  main.append(lb.element("section", { "aria-labelledby": "again" }, lb.element("h2", { id: "again" }, "How to get each number again"), again));
  performance.mark("text");
  requestAnimationFrame(() => setTimeout(lb.drawPlots, 0));
}

"use strict";
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const dark = () => root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  const show = () => button.setAttribute("aria-pressed", String(dark()));
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    show();
  });
  show();

  const valueOf = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
  };
  const compare = (a, b) => typeof a === "number" && typeof b === "number"
    ? a - b
    : String(a).localeCompare(String(b), undefined, { numeric: true });
  const sort = (table, head, column) => {
    const first = table.tBodies[0].rows[0];
    const falls = first !== undefined && typeof valueOf(first, column) === "number";
    const now = head.getAttribute("aria-sort");
    const next = now === null ? (falls ? "descending" : "ascending")
      : now === "ascending" ? "descending" : "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", next);
    const sign = next === "ascending" ? 1 : -1;
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => sign * compare(valueOf(a, column), valueOf(b, column)));
    table.tBodies[0].append(...rows);
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => sort(table, head, column));
    });
  }

  const search = document.getElementById("search");
  if (search !== null) {
    search.hidden = false;
    const rows = [...document.querySelectorAll("table.sortable tbody tr")];
    search.addEventListener("input", () => {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        shown += row.hidden ? 0 : 1;
        if (!row.hidden && words.length) row.closest("details")?.setAttribute("open", "");
      }
      const found = words.length ? `${shown} of ${rows.length} rows` : "";
      document.getElementById("matches").textContent = found;
    });
  }

  const units = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
  const timeText = (ns) => {
    const [scale, unit] = units.find(([size]) => ns >= size) ?? [1, "ns"];
    return `${Number((ns / scale).toPrecision(3))} ${unit}`;
  };
  for (const bar of document.querySelectorAll(".zoom")) {
    const chart = bar.previousElementSibling.querySelector("svg.chart");
    const plot = chart.querySelector("svg.plot");
    const [left, , width, height] = plot.getAttribute("viewBox").split(" ").map(Number);
    const ticks = [...chart.querySelectorAll("text.tick:not([x='78']), line.grid")]
      .filter((mark) => mark.tagName === "text" || mark.getAttribute("x1") === mark.getAttribute("x2"))
      .map((mark) => [mark, (Number(mark.getAttribute("x1") ?? mark.getAttribute("x")) - left) / width]);
    let [begin, end] = [0, 1];
    const draw = () => {
      plot.setAttribute("viewBox", `${left + begin * width} 0 ${(end - begin) * width} ${height}`);
      for (const [mark, part] of ticks) {
        const place = (part - begin) / (end - begin);
        mark.toggleAttribute("hidden", place < -1e-9 || place > 1 + 1e-9);
        for (const name of mark.tagName === "text" ? ["x"] : ["x1", "x2"]) {
          mark.setAttribute(name, left + place * width);
        }
      }
      const most = Number(bar.dataset.ns);
      const whole = begin === 0 && end === 1;
      bar.querySelector("output").textContent = whole ? ""
        : `${timeText(begin * most)} to ${timeText(end * most)}`;
    };
    const move = (middle, size) => {
      size = Math.min(size, 1);
      begin = Math.min(Math.max(middle - size / 2, 0), 1 - size);
      end = begin + size;
      draw();
    };
    const act = {
      in: () => move((begin + end) / 2, (end - begin) / 2),
      out: () => move((begin + end) / 2, (end - begin) * 2),
      back: () => move((begin + end) / 2 - (end - begin) / 2, end - begin),
      on: () => move((begin + end) / 2 + (end - begin) / 2, end - begin),
    };
    for (const button of bar.querySelectorAll("button")) {
      button.addEventListener("click", act[button.dataset.do]);
    }
    const at = (event) => {
      const box = chart.getBoundingClientRect();
      const x = (event.clientX - box.left) / box.width * chart.viewBox.baseVal.width;
      return begin + Math.min(Math.max((x - left) / width, 0), 1) * (end - begin);
    };
    plot.addEventListener("dblclick", (event) => move(at(event), (end - begin) / 2));
    chart.addEventListener("wheel", (event) => {
      const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
      if (!event.ctrlKey && !sideways) return; // the page scrolls
      event.preventDefault();
      const [size, middle] = [end - begin, (begin + end) / 2];
      if (sideways) {
        move(middle + size * Math.sign(event.deltaX || event.deltaY) / 8, size);
        return;
      }
      const scale = event.deltaY > 0 ? 1.25 : 0.8;
      move(at(event) + (middle - at(event)) * scale, size * scale);
    }, { passive: false });
    let from = null; // where a drag began
    chart.addEventListener("pointerdown", (event) => { from = at(event); });
    addEventListener("pointerup", (event) => {
      if (from === null) return;
      const [first, last] = [from, at(event)].sort((a, b) => a - b);
      from = null;
      if (last - first > (end - begin) / 100) move((first + last) / 2, last - first);
      else filter(event.target.closest(".span.bound-launch, .span.bound-pt"));
    });
    const filter = (span) => {
      const text = span?.querySelector("title")?.textContent.match(/^(?:launch|compute) (.*), stream/);
      if (!text || search === null) return;
      search.value = text[1];
      search.dispatchEvent(new Event("input"));
    };
    bar.hidden = false;
  }
})();

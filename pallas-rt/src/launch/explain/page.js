"use strict";
for (const kernel of document.querySelectorAll("section.kernel")) {
  const data = kernel.querySelector("script");
  if (!data) continue;
  const programs = JSON.parse(data.textContent);
  const slider = kernel.querySelector("input");
  const side = (first, block, low, high, length) => {
    const clip = (at) => (Math.min(Math.max(at, low), high) - low) / (high - low) * length;
    const from = first === null ? 0 : clip(first);
    const to = first === null ? length : clip(first + block);
    return [Math.min(from, length - 3), Math.max(to - from, 3)];
  };
  const show = () => {
    const program = programs[Number(slider.value)];
    kernel.querySelector("output").textContent = "program " + program.at;
    for (const mark of kernel.querySelectorAll("rect.now")) {
      const [array, row, column, rows, columns, top, bottom, left, right, x, y, wide, high] =
        mark.dataset.at.split(" ").map(Number);
      const first = program.places[array];
      const at = (dim) => (dim < 0 ? null : first[dim]);
      const [dy, height] = side(at(row), rows, top, bottom, high);
      const [dx, width] = side(at(column), columns, left, right, wide);
      for (const [name, value] of Object.entries({ x: x + dx, y: y + dy, width, height })) {
        mark.setAttribute(name, value);
      }
    }
    const items = program.steps.map((text) => {
      const item = document.createElement("li");
      item.textContent = text;
      return item;
    });
    kernel.querySelector("ol.steps").replaceChildren(...items);
  };
  const move = (by) => {
    slider.value = String(Number(slider.value) + by);
    show();
  };
  slider.addEventListener("input", show);
  kernel.querySelector("button.back").addEventListener("click", () => move(-1));
  kernel.querySelector("button.on").addEventListener("click", () => move(1));
  show();
}

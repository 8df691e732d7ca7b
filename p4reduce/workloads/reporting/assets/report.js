// Draws the charts of a report, in the colours of the page, for the strategy that is chosen.
"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const config = { responsive: true, displaylogo: false, displayModeBar: false };
  const choices = [...document.querySelectorAll(".choice input")];
  let chosen = choices.length ? choices[0].value : null;

  // Figures name the page's colours; Plotly wants values.
  function coloured(value, style) {
    if (Array.isArray(value)) return value.map((part) => coloured(part, style));
    if (value !== null && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, coloured(part, style)]));
    }
    const named = typeof value === "string" && /^var\((--[a-z0-9-]+)\)$/.exec(value);
    return named ? style.getPropertyValue(named[1]).trim() : value;
  }

  function draw(place, figure, style) {
    const { data, layout } = coloured(figure, style);
    place.style.height = `${layout.height}px`;
    return Plotly.react(place, data, layout, config);
  }

  // A strategy that a group of charts has not leaves that group as it is.
  function drawAll() {
    const style = getComputedStyle(document.documentElement);
    const drawn = [];
    for (const place of document.querySelectorAll("[data-chart]")) {
      const name = place.dataset.chart;
      const own = charts.each[name];
      if (!own) drawn.push(draw(place, charts.whole[name], style));
      else drawn.push(draw(place, Object.hasOwn(own, chosen) ? own[chosen] : Object.values(own)[0], style));
    }
    return Promise.all(drawn);
  }

  function choose(strategy) {
    chosen = strategy;
    for (const section of document.querySelectorAll("section")) {
      const own = [...section.querySelectorAll(".choice input")];
      if (!own.length) continue;
      const shown = own.some((input) => input.value === strategy) ? strategy : own[0].value;
      for (const input of own) input.checked = input.value === shown;
      for (const part of section.querySelectorAll("[data-strategy]")) part.hidden = part.dataset.strategy !== shown;
    }
    return drawAll();
  }

  for (const input of choices) input.addEventListener("change", () => choose(input.value));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  choose(chosen).then(() => { document.documentElement.dataset.drawn = "yes"; });
})();

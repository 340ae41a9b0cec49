// Draws every figure of the page from the JSON beside it. No request leaves the page.
for (const place of document.querySelectorAll(".figure")) {
  const figure = JSON.parse(place.querySelector("script").textContent);
  Plotly.newPlot(place, { data: figure.data, layout: figure.layout, frames: figure.frames, config: CONFIG });
}

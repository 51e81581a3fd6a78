// A picture of minutes by uPlot.
import { h } from "preact";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { number, time } from "./parts.jsx";

const HEIGHT = 150;
const dark = matchMedia("(prefers-color-scheme: dark)");

/** `series`: [name, colour (a variable of the style), the values by minute]. `times` in seconds. */
export function Chart({ title, times, series, unit = "" }) {
  const place = useRef(), plot = useRef();
  const lines = JSON.stringify(series.map(([name, colour]) => [name, colour]));
  useEffect(() => {
    const draw = () => {
      plot.current?.destroy();
      const style = getComputedStyle(document.documentElement);
      const colour = (name) => style.getPropertyValue(`--${name}`).trim();
      const axis = { stroke: colour("faint"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
      const shape = (value) => (value == null ? "–" : number(value) + unit);
      plot.current = new uPlot({
        width: place.current.clientWidth,
        height: HEIGHT,
        scales: { y: { range: (_, _least, most) => [0, most > 0 ? most * 1.1 : 1] } },
        axes: [{ ...axis, size: 26, values: (_, ticks) => ticks.map((at) => time(at).slice(0, 5)) }, { ...axis, size: 62, values: (_, ticks) => ticks.map(shape) }],
        series: [
          { value: (_, at) => time(at).slice(0, 5) || "–" },
          ...JSON.parse(lines).map(([label, name]) => ({ label, stroke: colour(name), width: 2, value: (_, value) => shape(value) })),
        ],
        legend: { markers: { width: 3 } },
      }, plot.current?.data, place.current);
    };
    draw();
    const sized = new ResizeObserver(() => plot.current.setSize({ width: place.current.clientWidth, height: HEIGHT }));
    sized.observe(place.current);
    dark.addEventListener("change", draw);
    return () => {
      sized.disconnect();
      dark.removeEventListener("change", draw);
      plot.current.destroy();
      plot.current = undefined;
    };
  }, [lines, unit]);
  useEffect(() => plot.current.setData([times, ...series.map(([, , values]) => values)]), [times, series]);
  return <figure><figcaption>{title}</figcaption><div ref={place} /></figure>;
}

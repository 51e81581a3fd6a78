// A picture of minutes.
import { useState } from "preact/hooks";
import { number, time } from "./parts.jsx";

const clock = (at) => time(at).slice(0, 5);
const STEPS = [1, 1.5, 2, 3, 4, 5, 6, 8, 10];

/** A round number that is no less. */
function above(most) {
  const unit = 10 ** Math.floor(Math.log10(most));
  return unit * STEPS.find((each) => each * unit >= most);
}

/** `series`: [name, colour (a class), the values by minute]. `times` in seconds. The pointer chooses the minute that is told. */
export function Chart({ title, times, series, unit = "" }) {
  const [chosen, choose] = useState();
  const at = times[chosen] === undefined ? times.length - 1 : chosen;
  const top = above(Math.max(0, ...series.flatMap(([, , values]) => values)) || 1);
  const [first, last] = [times[0], times.at(-1)];
  const x = (index) => (100 * (times[index] - first)) / (last - first || 1);
  const y = (value) => 100 - (100 * value) / top;
  const line = (values) => values.map((value, index) => value == null ? "" : `${values[index - 1] == null ? "M" : "L"}${x(index)} ${y(value)}`).join("");
  // A minute without neighbours has no line: it is a dot.
  const dots = (values) => values.map((value, index) => value == null || values[index - 1] != null || values[index + 1] != null ? "" : `M${x(index)} ${y(value)}h0`).join("");
  const shape = (value) => (value == null ? "–" : number(value) + unit);
  const moved = ({ offsetX, currentTarget }) => {
    const here = first + (last - first) * (offsetX / currentTarget.clientWidth);
    choose(times.findLastIndex((each) => each - 30 <= here));
  };
  return (
    <figure>
      <figcaption>{title}</figcaption>
      <div class="plot">
        {[1, 0.5, 0].map((share) => <small>{shape(top * share)}</small>)}
        <svg viewBox="0 0 100 100" preserveAspectRatio="none" role="img" aria-label={title} onPointerMove={moved} onPointerLeave={() => choose()}>
          <path class="line" d={`M0 0H100M0 50H100M0 100H100${chosen === at ? `M${x(at)} 0V100` : ""}`} />
          {series.map(([, colour, values]) => [<path class={colour} d={line(values)} />, <path class={`${colour} dot`} d={dots(values)} />])}
        </svg>
      </div>
      <p class="ends">{(times.length > 2 ? [first, (first + last) / 2, last] : [last]).map((each) => <small>{clock(each)}</small>)}</p>
      <p class="legend">{clock(times[at])}{series.map(([name, colour, values]) => <span><b class={colour}>●</b> {name} {shape(values[at])}</span>)}</p>
    </figure>
  );
}

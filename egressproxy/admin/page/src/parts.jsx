// What several views are made of. Texts of requests come from strangers: they are text nodes, never markup.
import { Fragment } from "preact";
import { useEffect, useState } from "preact/hooks";
import { usePolled } from "./api.js";

const PAGE = 100;
const DOUBLE_CLICK_MS = 400;

const CLOCK = { hourCycle: "h23" };
// Times are seconds since 1970, or texts.
const date = (at) => new Date(typeof at === "number" ? at * 1000 : at);
export const time = (at) => (at ? date(at).toLocaleTimeString([], CLOCK) : "");
export const moment = (at) => (at ? date(at).toLocaleString([], CLOCK) : "");
export const number = (value) => (typeof value === "number" ? value.toLocaleString([], { maximumFractionDigits: Math.abs(value) < 1 ? 6 : 2 }) : shown(value));
// Characters that are not seen, or turn the direction of a text, are told: else a text may look like another one.
const seen = (text) => text.replace(/(?!\n)\p{C}/gu, (each) => `\\u{${each.codePointAt().toString(16)}}`);
export const shown = (value) => (value == null || value === "-" ? "" : seen(typeof value === "object" ? JSON.stringify(value) : String(value)));

/** The client of a request. */
export const who = (line) => [line.namespace, line.service_account].map(shown).filter(Boolean).join("/") || shown(line.identity) || shown(line.client);

const GOOD = /^(true|allowed|healthy|in service|valid)$/i;
const BAD = /^(false|denied|failed|unhealthy|ejected|expired|late|not yet valid|rejected|missing)$/i;
/** A word in the colour of its meaning: good, bad or warn. */
export const Word = ({ is, children }) => <span class={is}>{children}</span>;
export const verdict = (text) => {
  const word = String(text);
  return <Word is={GOOD.test(word) ? "good" : BAD.test(word) ? "bad" : ""}>{word}</Word>;
};

/** The answer of `usePolled` by `children`, or why there is none. */
export function Loaded({ of, children }) {
  return (
    <>
      {of.error && <p class="bad" role="alert">{of.error}{of.data && " What is shown is older."}</p>}
      {of.data ? children(of.data) : !of.error && <p>Loading …</p>}
    </>
  );
}

/** A table of the member `of` of what `path` answers. */
export const Listed = ({ path, seconds, of, ...table }) => (
  <Loaded of={usePolled(path, seconds)}>{(found) => <Table rows={found[of]} {...table} />}</Loaded>
);

/**
 * A table in pages of 100 rows. `columns`: [title, (row) => cell, class]. `detail`: (row) => what a press on the first
 * cell opens below the row. `id`: (row) => what stays the same when rows come and go.
 */
export function Table({ label, columns, rows, id, detail, empty = "There are none." }) {
  const [page, turn] = useState(0);
  const [open, unfold] = useState();
  const [search, seek] = useState("");
  const words = search.toLowerCase();
  const found = words ? rows.filter((row) => JSON.stringify(row).toLowerCase().includes(words)) : rows;
  const last = Math.max(0, Math.ceil(found.length / PAGE) - 1);
  const at = Math.min(page, last) * PAGE;
  return (
    <section>
      {(rows.length > 8 || search) && (
        <p class="tools">
          <label>Find <input type="search" value={search} onInput={(event) => seek(event.target.value)} /></label>{" "}
          <span role="status">{number(found.length)} of {number(rows.length)}</span>
        </p>
      )}
      <div class="scroll" role="region" aria-label={label} tabindex="0">
        <table>
          <thead>
            <tr>{columns.map(([title, , kind]) => <th scope="col" class={kind}>{title}</th>)}</tr>
          </thead>
          <tbody>
            {found.slice(at, at + PAGE).map((row, index) => {
              const key = id ? id(row) : at + index;
              const isOpen = open === key;
              return (
                <Fragment key={key}>
                  <tr>
                    {columns.map(([title, cell, kind], place) => (
                      <td class={kind} data-label={place ? title : undefined}>
                        {detail && !place ? (
                          <button class="row" aria-expanded={isOpen} onClick={() => unfold(isOpen ? undefined : key)}>{cell(row)}</button>
                        ) : cell(row)}
                      </td>
                    ))}
                  </tr>
                  {isOpen && <tr class="detail"><td colspan={columns.length}>{detail(row)}</td></tr>}
                </Fragment>
              );
            })}
          </tbody>
        </table>
        {!found.length && <p>{rows.length ? "Nothing is found." : empty}</p>}
      </div>
      {last > 0 && (
        <nav class="tools" aria-label={`Pages of ${label}`}>
          <button disabled={!at} onClick={() => turn(at / PAGE - 1)}>Previous</button>{" "}
          {number(at + 1)} to {number(Math.min(at + PAGE, found.length))}{" "}
          <button disabled={at / PAGE >= last} onClick={() => turn(at / PAGE + 1)}>Next</button>
        </nav>
      )}
    </section>
  );
}

/** Names and values; objects are nested, and what is empty is left out. */
export function Facts({ of }) {
  const told = Object.entries(of).filter(([, value]) => shown(value) && shown(value) !== "[]" && shown(value) !== "{}");
  return (
    <dl>
      {told.map(([name, value]) => (
        <div>
          <dt>{name}</dt>
          <dd>{typeof value !== "object" ? shown(value) : Array.isArray(value) ? (
            <ul>{value.map((each) => <li>{each && typeof each === "object" ? <Facts of={each} /> : shown(each)}</li>)}</ul>
          ) : <Facts of={value} />}</dd>
        </div>
      ))}
    </dl>
  );
}

/** A unified diff, or one of configurations, whose signs are indented. The signs say what the colours say. */
export const Diff = ({ text, sign = text.startsWith("---") ? /^./ : /\S/ }) => (
  <pre class="diff" tabindex="0" aria-label="Change">
    {text.trimEnd().split("\n").map((line) => <span class={{ "+": "good", "-": "bad", "@": "faint", "!": "warn" }[line.match(sign)]}>{line + "\n"}</span>)}
  </pre>
);

export const Field = ({ label, ...rest }) => <label>{label} <input {...rest} /></label>;

/** A button that does its `action` after a second press, and says what became of it. */
export function Act({ name, action, done }) {
  const [state, set] = useState({});
  useEffect(() => {
    if (!state.asked) return;
    const timer = setTimeout(() => set({}), 5000);
    return () => clearTimeout(timer);
  }, [state.asked]);
  const press = async () => {
    if (!state.asked) return set({ asked: Date.now() });
    if (Date.now() - state.asked < DOUBLE_CLICK_MS) return;
    set({ busy: true });
    try {
      await action();
      set({ text: done || "Done.", is: "good" });
    } catch (error) {
      set({ text: error.message, is: "bad" });
    }
  };
  return (
    <>
      <button disabled={state.busy} onClick={press}>{state.busy ? "…" : state.asked ? `${name}: press again` : name}</button>{" "}
      <span role="status" class={state.is}>{state.text}</span>
    </>
  );
}

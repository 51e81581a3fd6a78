// Makes dist/ from src/: `make page` calls it after `npm ci`.
import { copyFileSync, readFileSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

// Functions of uPlot for what the page does not draw (bars, curves, logarithms, its own dates): they are emptied, a sixth of all.
const UNUSED = [
  "asinhAxisSplits", "bars", "clipBandLine", "fmtDate", "join", "log10AxisValsFilt", "log2AxisValsFilt", "logAxisSplits", "monotoneCubic",
  "rangeAsinh", "rangeLog", "snapAsinhY", "snapLogY", "stepped", "timeAxisStamps", "timeAxisVal", "timeAxisVals", "timeSeriesStamp",
  "timeSeriesVal",
];

const smallerPlot = {
  name: "smaller uPlot",
  setup({ onLoad }) {
    onLoad({ filter: /uPlot\.esm\.js$/ }, ({ path }) => {
      let contents = readFileSync(path, "utf8");
      for (const name of UNUSED) {
        const whole = new RegExp(`^function ${name}\\(.*?^}$`, "ms");
        if (!whole.test(contents)) throw new Error(`uPlot has changed: it has no function ${name}`);
        contents = contents.replace(whole, `function ${name}() {}`);
      }
      return { contents };
    });
  },
};

await build({
  entryPoints: ["src/page.jsx", "src/page.css"],
  outdir: "dist",
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  legalComments: "none",
  jsxFactory: "h",
  jsxFragment: "Fragment",
  plugins: [smallerPlot],
});
copyFileSync("src/index.html", "dist/index.html");

// What is bundled asks for its licence to go with it.
const bundled = ["preact", "uplot"].map((name) => `${name}\n\n${readFileSync(`node_modules/${name}/LICENSE`, "utf8")}`);
writeFileSync("dist/licenses.txt", bundled.join("\n"));

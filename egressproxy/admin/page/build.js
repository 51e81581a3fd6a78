// Makes dist/ from src/: `make page` calls it after `npm ci`.
import { copyFileSync } from "node:fs";
import { build } from "esbuild";

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
});
copyFileSync("src/index.html", "dist/index.html");

// What is bundled asks for its licence to go with it.
copyFileSync("node_modules/preact/LICENSE", "dist/licenses.txt");

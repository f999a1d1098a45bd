// Lets the modules of Vega find each other, and joins them as its own index does.
const vega = (() => {
  const loaded = {};
  const load = (name) => {
    // One module is called by a name that its file does not have.
    const file = name === "vega-selections" ? "vega-selection" : name;
    if (!loaded[file]) {
      loaded[file] = {};
      vegaModules[file](loaded[file], {}, load);
    }
    return loaded[file];
  };
  const { transforms } = load("vega-dataflow");
  for (const name of ["vega-transforms", "vega-view-transforms", "vega-encode"]) {
    Object.assign(transforms, load(name));
  }
  const { parse } = load("vega-parser");
  const { View } = load("vega-view");
  const { expressionInterpreter } = load("vega-interpreter");
  return { parse, View, expressionInterpreter };
})();

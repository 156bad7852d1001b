// How cells of grids are drawn. React writes text as text: a name from a trace is never markup.
(function () {
  "use strict";
  var dagcomponentfuncs = (window.dashAgGridComponentFunctions = window.dashAgGridComponentFunctions || {});

  function parameters(props) {
    return (props.colDef && props.colDef.cellRendererParams) || {};
  }

  // Another field's text beside the number that the column sorts by.
  dagcomponentfuncs.FusionText = function (props) {
    var from = parameters(props).from;
    var text = props.data && from ? props.data[from] : props.value;
    return text === null || text === undefined ? "" : String(text);
  };

  // A link within the dashboard; other addresses stay text. A plain click shows the page without loading the document.
  // Another field may hold what is shown of the value: its title is the whole.
  dagcomponentfuncs.FusionLink = function (props) {
    var href = props.data && props.data[parameters(props).href];
    var text = props.value === null || props.value === undefined ? "" : String(props.value);
    var shown = props.data && props.data[parameters(props).from];
    shown = shown === null || shown === undefined ? text : String(shown);
    if (typeof href !== "string" || href.charAt(0) !== "/" || href.charAt(1) === "/") {
      return window.React.createElement("span", { title: text }, shown);
    }
    function follow(event) {
      if (event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) {
        return;
      }
      event.preventDefault();
      window.history.pushState({}, "", href);
      window.dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
    }
    return window.React.createElement("a", { href: href, onClick: follow, title: text }, shown);
  };

  // A share from 0 to 1 as a bar behind its text.
  dagcomponentfuncs.FusionShare = function (props) {
    var given = parameters(props);
    var text = props.data && given.from ? props.data[given.from] : "";
    var share = Math.max(0, Math.min(1, Number(props.value) || 0));
    return window.React.createElement(
      "span",
      { className: "share" },
      window.React.createElement("span", { className: "share-bar", style: { width: 100 * share + "%" } }),
      window.React.createElement("span", { className: "share-text" }, text || "")
    );
  };
})();

// What the list of kernels shows → the address bar. The server has written filters and order as an address holds them.
(function () {
  "use strict";
  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.kernels = {
    // the columns of the groups → their order as an address holds it; most time first goes without saying
    order: function (columns, order) {
      var sorted = (columns || []).filter(function (column) {
        return column.sort;
      });
      sorted.sort(function (a, b) {
        return (a.sortIndex || 0) - (b.sortIndex || 0);
      });
      var text = sorted
        .map(function (column) {
          return (column.sort === "desc" ? "-" : "") + column.colId;
        })
        .join(",");
      text = text === "-dur_us" ? "" : text;
      return !columns || text === (order || "") ? window.dash_clientside.no_update : text;
    },
    address: function (shown) {
      if (shown && /\/kernels$/.test(window.location.pathname)) {
        var url = new URL(window.location.href);
        ["filter", "sort", "group", "group_sort"].forEach(function (name) {
          if (shown[name]) {
            url.searchParams.set(name, shown[name]);
          } else {
            url.searchParams.delete(name);
          }
        });
        window.history.replaceState(window.history.state, "", url);
      }
      return window.dash_clientside.no_update;
    },
  };
})();

// Drawings arrive as text in data-svg and become elements here. Only what a drawing consists of is let through, so that
// nothing that a trace may name can become a script, a link or a style.
(function () {
  "use strict";
  var SVG = "http://www.w3.org/2000/svg";
  var ELEMENTS = ["svg", "g", "rect", "path", "text", "title", "desc", "circle", "line", "polyline"];
  var ATTRIBUTES = [
    "class", "viewBox", "width", "height", "role", "aria-labelledby", "aria-describedby", "aria-label", "aria-hidden",
    "id", "x", "y", "x1", "y1", "x2", "y2", "cx", "cy", "r", "rx", "ry", "d", "points", "text-anchor",
    "preserveAspectRatio",
  ];

  function copy(node) {
    if (node.nodeType === Node.TEXT_NODE) {
      return document.createTextNode(node.nodeValue);
    }
    if (node.nodeType !== Node.ELEMENT_NODE || ELEMENTS.indexOf(node.localName) < 0) {
      return null;
    }
    var made = document.createElementNS(SVG, node.localName);
    Array.prototype.forEach.call(node.attributes, function (attribute) {
      if (ATTRIBUTES.indexOf(attribute.name) >= 0) {
        made.setAttribute(attribute.name, attribute.value);
      }
    });
    node.childNodes.forEach(function (child) {
      var part = copy(child);
      if (part) {
        made.appendChild(part);
      }
    });
    return made;
  }

  function draw(holder) {
    var markup = holder.getAttribute("data-svg");
    if (holder.fusionDrawn === markup) {
      return;
    }
    holder.fusionDrawn = markup;
    var parsed = new DOMParser().parseFromString(markup, "image/svg+xml").documentElement;
    // The parser gives the markup no namespace unless it says so itself; names are what is compared.
    var made = copy(parsed);
    holder.replaceChildren.apply(holder, made ? [made] : []);
  }

  function all(root) {
    if (root.nodeType !== Node.ELEMENT_NODE) {
      return;
    }
    if (root.hasAttribute("data-svg")) {
      draw(root);
    }
    root.querySelectorAll("[data-svg]").forEach(draw);
  }

  new MutationObserver(function (changes) {
    changes.forEach(function (change) {
      if (change.type === "attributes") {
        draw(change.target);
      } else {
        change.addedNodes.forEach(all);
      }
    });
  }).observe(document.documentElement, {
    childList: true, subtree: true, attributes: true, attributeFilter: ["data-svg"],
  });
  all(document.documentElement);
})();

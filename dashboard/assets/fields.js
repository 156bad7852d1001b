// Two fields that HTML has and Dash lacks: every keyboard, telephone and screen reader knows them.
// Python's side is dashboard/components/fields.py.
(function () {
  "use strict";
  window.fusion_fields = {
    Select: function (props) {
      var make = window.React.createElement;
      var options = (props.options || []).map(function (option) {
        return make("option", { key: option.value, value: option.value }, option.label);
      });
      return make(
        "select",
        {
          id: props.id,
          value: props.value || "",
          disabled: Boolean(props.disabled),
          onChange: function (event) {
            props.setProps({ value: event.target.value || null });
          },
        },
        options
      );
    },
    Checkbox: function (props) {
      var make = window.React.createElement;
      var box = make("input", {
        id: props.id,
        type: "checkbox",
        checked: Boolean(props.checked),
        disabled: Boolean(props.disabled),
        onChange: function (event) {
          props.setProps({ checked: event.target.checked });
        },
      });
      return make("label", { className: "checkbox" }, box, props.label);
    },
  };
})();

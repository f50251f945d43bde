"""Fields of the backends' configurations, each with the declaration of its knob; rules and forms for libraries are in the
classes that inherit them."""

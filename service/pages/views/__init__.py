"""What the templates show: plain values made from rows, with every decision taken here rather than in a template."""

"""Metrics that do not depend on the layout, and where they are written."""

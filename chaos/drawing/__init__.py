"""A report as one HTML page: its charts are SVG that is drawn here, and nothing is loaded from anywhere."""

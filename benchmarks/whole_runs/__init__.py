"""Plans of published training runs, compared with the GPU-hours that those took."""

"""From files to manifests and resources, with the place of everything that is wrong."""

"""Lightning on the device, for whichever of its packages; the modules beside this are the doors."""

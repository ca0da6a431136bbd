"""How the portal presents the organisation that runs it: its name, logo and colour, where to ask for help, and a banner."""

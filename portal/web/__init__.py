"""What lies between the gateway and Django's views: which requests are accepted, the headers of answers, WebSockets."""

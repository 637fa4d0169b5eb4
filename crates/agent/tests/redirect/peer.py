"""Tiny servers and clients that know nothing of proxies.

serve ADDRESS PORT    tells every caller over TCP which address it comes from
answer ADDRESS PORT   the same over UDP
call ADDRESS PORT     prints what a server over TCP says
ask ADDRESS PORT      prints what a server over UDP says
get ADDRESS PORT PATH prints what a web server answers
"""

import socket
import sys

verb, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
family = socket.AF_INET6 if ":" in address else socket.AF_INET
kind = socket.SOCK_DGRAM if verb in ("answer", "ask") else socket.SOCK_STREAM
with socket.socket(family, kind) as peer:
    peer.settimeout(None if verb in ("serve", "answer") else 10)
    if verb == "serve":
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        peer.bind((address, port))
        peer.listen()
        while True:
            caller, source = peer.accept()
            with caller:
                caller.sendall(f"{address} hears {source[0]}".encode())
    elif verb == "answer":
        peer.bind((address, port))
        while True:
            _, source = peer.recvfrom(100)
            peer.sendto(f"port {port} hears {source[0]}".encode(), source)
    elif verb in ("call", "get"):
        peer.connect((address, port))
        if verb == "get":
            peer.sendall(f"GET {sys.argv[4]} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        print(peer.makefile().read())
    else:
        peer.connect((address, port))
        peer.send(b"?")
        print(peer.recv(100).decode())

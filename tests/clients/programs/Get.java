// Java's HttpClient: a GET through the proxy of the system properties, to which it shows user and password where they
// are there, too; prints status and body, or what went wrong.

import java.net.Authenticator;
import java.net.PasswordAuthentication;
import java.net.ProxySelector;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;

class Get {
    public static void main(String[] arguments) throws Exception {
        HttpClient.Builder made = HttpClient.newBuilder().proxy(ProxySelector.getDefault());
        String user = System.getProperty("proxyUser");
        if (user != null) {
            char[] password = System.getProperty("proxyPassword").toCharArray();
            made.authenticator(new Authenticator() {
                @Override
                protected PasswordAuthentication getPasswordAuthentication() {
                    boolean asks = getRequestorType() == RequestorType.PROXY;
                    return asks ? new PasswordAuthentication(user, password) : null;
                }
            });
        }
        HttpClient client = made.build();
        HttpRequest request = HttpRequest.newBuilder(URI.create(arguments[0])).build();
        HttpResponse<String> response = client.send(request, HttpResponse.BodyHandlers.ofString());
        System.out.println(response.version() + " " + response.statusCode() + " " + response.body());
        System.exit(response.statusCode() == 200 ? 0 : 1);
    }
}
